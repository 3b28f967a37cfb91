add_library(linkcpp_warnings INTERFACE)
target_compile_options(linkcpp_warnings INTERFACE
  -Wall -Wextra -Wpedantic $<$<CXX_COMPILER_ID:GNU>:-Wshadow=local> -Wconversion -Wno-sign-conversion -Wnon-virtual-dtor -Werror
  -Wno-missing-field-initializers)  # designated initialisers name what differs from the defaults
if(LINKCPP_SANITIZE)
  # Instrumented code confuses the two flow analyses; asio has fences, which ThreadSanitizer does not follow and says so.
  target_compile_options(linkcpp_warnings INTERFACE $<$<CXX_COMPILER_ID:GNU>:-Wno-tsan>
    $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized> $<$<CXX_COMPILER_ID:GNU>:-Wno-stringop-overflow>)
endif()
