// How a row's process says that there is nothing wrong with it, only nothing for it to compute on.
#pragma once

namespace linkcpp {

// Exit status of linkcpp-matrix-row and of the numpy row: the device, backend or package is not to be had here; the
// reason is on standard error.
inline constexpr int kRowHasNoDevice = 3;

}  // namespace linkcpp
