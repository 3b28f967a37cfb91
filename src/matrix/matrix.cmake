# The numpy row is a Python program inside ours.
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/matrix/numpy_row.py)
file(READ ${PROJECT_SOURCE_DIR}/src/matrix/numpy_row.py LINKCPP_NUMPY_ROW)
configure_file(${PROJECT_SOURCE_DIR}/src/matrix/numpy_row.cc.in ${PROJECT_BINARY_DIR}/generated/numpy_row.cc @ONLY)
target_sources(linkcpp_matrix PRIVATE ${PROJECT_BINARY_DIR}/generated/numpy_row.cc)
