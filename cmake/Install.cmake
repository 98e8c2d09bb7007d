# What `cmake --install` puts where: libraries, headers, command, man pages, completions, and the two
# ways in which other builds find the library: pkg-config and a CMake package.
include(CMakePackageConfigHelpers)

# A program that links the static library also links the libraries that it needs.
set(LK_PRIVATE_LIBS "${LK_URING_PC}-ljansson -lturbojpeg -lpng16 -lz -lnettle -lm -ldl -pthread")
set(LK_PACKAGE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/lockstep)

# The .pc file finds its prefix from where it lies, so that any --prefix works.
file(RELATIVE_PATH LK_PC_TO_PREFIX /prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig /prefix)
configure_file(cmake/lockstep.pc.in ${CMAKE_BINARY_DIR}/lockstep.pc @ONLY)
configure_file(cmake/lockstep-shared.pc.in ${CMAKE_BINARY_DIR}/lockstep-shared.pc @ONLY)
configure_package_config_file(cmake/lockstepConfig.cmake.in ${CMAKE_BINARY_DIR}/lockstepConfig.cmake
  INSTALL_DESTINATION ${LK_PACKAGE_DIR} PATH_VARS CMAKE_INSTALL_LIBDIR CMAKE_INSTALL_INCLUDEDIR)
write_basic_package_version_file(${CMAKE_BINARY_DIR}/lockstepConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)

install(TARGETS lockstep ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
if(LK_SHARED)
  install(TARGETS lockstep_shared LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
  install(FILES ${CMAKE_BINARY_DIR}/lockstep-shared.pc
    DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endif()
# The component `command` is what tools/package packs.
install(TARGETS lockstep_command RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT command)
install(DIRECTORY include/lockstep DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(FILES ${CMAKE_BINARY_DIR}/lockstep.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
install(FILES ${CMAKE_BINARY_DIR}/lockstepConfig.cmake ${CMAKE_BINARY_DIR}/lockstepConfigVersion.cmake
  DESTINATION ${LK_PACKAGE_DIR})

# Man pages and completions come out of the command's own option tables, so it must run here to write
# them.
if(NOT CMAKE_CROSSCOMPILING)
  set(derived_man lockstep.1)
  set(derived_completions bash/lockstep)
  foreach(kind man completions)
    add_custom_command(OUTPUT ${CMAKE_BINARY_DIR}/${kind}/${derived_${kind}}
      COMMAND ${PROJECT_SOURCE_DIR}/tools/${kind} $<TARGET_FILE:lockstep_command> ${CMAKE_BINARY_DIR}/${kind}
      DEPENDS lockstep_command tools/${kind} VERBATIM)
    add_custom_target(${kind} ALL DEPENDS ${CMAKE_BINARY_DIR}/${kind}/${derived_${kind}})
  endforeach()
  install(DIRECTORY ${CMAKE_BINARY_DIR}/man/ DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 COMPONENT command)
  install(FILES ${CMAKE_BINARY_DIR}/completions/bash/lockstep
    DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions COMPONENT command)
  install(FILES ${CMAKE_BINARY_DIR}/completions/zsh/_lockstep
    DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions COMPONENT command)
  install(FILES ${CMAKE_BINARY_DIR}/completions/fish/lockstep.fish
    DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d COMPONENT command)
endif()

if(SKBUILD)
  include(cmake/Wheel.cmake)
endif()
