// The numpy row of the matrix, as a Python program for `python3 -c`: numpy_row.py, put into the program by CMake.
#pragma once

namespace linkcpp {

extern const char* const kNumpyRow;

}  // namespace linkcpp
