# One folder of src/ is one static library, linkcpp::<folder>.
#   linkcpp_folder(<folder> [USES <folder>...] [EXTERNAL <target>...] [EXCLUDE <file>...])
# USES may name only folders declared earlier, so src/CMakeLists.txt read top to bottom is the architecture.
# The folder is visible to its users, and to nobody else, as "<folder>/...": its include root is a link to itself alone.
# Files called *_test.cc become <folder>_test; files called *_main.cc are left to the folder's own target.
function(linkcpp_folder folder)
  cmake_parse_arguments(PARSE_ARGV 1 ARG "" "" "USES;EXTERNAL;EXCLUDE;TEST_EXTERNAL")
  foreach(used IN LISTS ARG_USES)
    if(NOT TARGET linkcpp::${used})
      message(FATAL_ERROR "src/${folder} uses src/${used}, which is not below it")
    endif()
  endforeach()

  set(dir ${PROJECT_SOURCE_DIR}/src/${folder})
  set(view ${PROJECT_BINARY_DIR}/view/${folder})
  file(MAKE_DIRECTORY ${view})
  file(CREATE_LINK ${dir} ${view}/${folder} SYMBOLIC)

  file(GLOB sources CONFIGURE_DEPENDS ${dir}/*.cc)
  file(GLOB tests CONFIGURE_DEPENDS ${dir}/*_test.cc)
  file(GLOB mains CONFIGURE_DEPENDS ${dir}/*_main.cc)
  list(TRANSFORM ARG_EXCLUDE PREPEND ${dir}/)
  list(REMOVE_ITEM sources ${tests} ${mains} ${ARG_EXCLUDE})
  if(NOT sources)
    file(WRITE ${PROJECT_BINARY_DIR}/empty/${folder}.cc "")
    set(sources ${PROJECT_BINARY_DIR}/empty/${folder}.cc)
  endif()

  add_library(linkcpp_${folder} STATIC ${sources})
  add_library(linkcpp::${folder} ALIAS linkcpp_${folder})
  target_compile_features(linkcpp_${folder} PUBLIC cxx_std_23)
  target_include_directories(linkcpp_${folder} PUBLIC ${view})
  list(TRANSFORM ARG_USES PREPEND linkcpp::)
  target_link_libraries(linkcpp_${folder} PUBLIC ${ARG_USES} PRIVATE linkcpp_warnings ${ARG_EXTERNAL})

  if(BUILD_TESTING AND tests)
    add_executable(${folder}_test ${tests})
    target_link_libraries(${folder}_test PRIVATE linkcpp::${folder} linkcpp_warnings ${ARG_TEST_EXTERNAL} GTest::gtest GTest::gmock GTest::gtest_main)
    target_compile_definitions(${folder}_test PRIVATE LINKCPP_ASSETS="${PROJECT_SOURCE_DIR}/assets"
      LINKCPP_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
    add_test(NAME ${folder} COMMAND ${folder}_test)
    set_tests_properties(${folder} PROPERTIES LABELS quick TIMEOUT 300)
  endif()
endfunction()
