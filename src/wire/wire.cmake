# messages.fbs -> messages_generated.h in the build tree, seen by src/wire only and as a system header.
set(wire_generated ${PROJECT_BINARY_DIR}/generated/wire)
add_custom_command(
  OUTPUT ${wire_generated}/messages_generated.h
  COMMAND ${FLATC} --cpp --scoped-enums --cpp-std c++17 -o ${wire_generated} ${CMAKE_CURRENT_SOURCE_DIR}/wire/messages.fbs
  DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/wire/messages.fbs
  COMMENT "flatc wire/messages.fbs")
target_sources(linkcpp_wire PRIVATE ${wire_generated}/messages_generated.h)
target_include_directories(linkcpp_wire SYSTEM PRIVATE ${wire_generated})
