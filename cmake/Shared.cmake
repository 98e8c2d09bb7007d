# liblockstep.so, from the objects of the static library, for programs that load the library at run
# time.  All objects are position independent, and no other library may replace a function of ours,
# so the compiler may still inline all of them.
set(LK_SOVERSION 0) # also the number of the node in lockstep.map
set_target_properties(lockstep PROPERTIES POSITION_INDEPENDENT_CODE ON)
target_compile_options(lockstep PRIVATE -fno-semantic-interposition)

# Two targets may not have the same name, but a static and a shared library may.
add_library(lockstep_shared SHARED $<TARGET_OBJECTS:lockstep>)
set_target_properties(lockstep_shared PROPERTIES OUTPUT_NAME lockstep LINKER_LANGUAGE C
  VERSION ${PROJECT_VERSION} SOVERSION ${LK_SOVERSION}
  LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib
  LINK_DEPENDS ${PROJECT_SOURCE_DIR}/cmake/lockstep.map)
target_include_directories(lockstep_shared PUBLIC
  $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
target_link_libraries(lockstep_shared PRIVATE lk_shared_dependencies PUBLIC Threads::Threads)
# Libraries that are linked statically export nothing through this one.
target_link_options(lockstep_shared PRIVATE -Wl,--exclude-libs,ALL -Wl,-Bsymbolic-functions
  -Wl,--version-script=${PROJECT_SOURCE_DIR}/cmake/lockstep.map)
if(NOT LK_SANITIZE) # a sanitizer's functions are defined by the program
  target_link_options(lockstep_shared PRIVATE -Wl,--no-undefined)
endif()
