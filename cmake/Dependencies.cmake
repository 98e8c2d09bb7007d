# Libraries are linked statically where the system ships them so: the command needs only libc.  In
# liblockstep.so a static library may not be usable, because its code is position dependent (Debian's
# libturbojpeg.a).  The shared library with the same name is then linked instead.
find_package(Threads REQUIRED)

# ---- Required ------------------------------------------------------------------------
# All that is missing is named at once, with the Debian packages that have it.
find_library(LK_LIB_jansson NAMES libjansson.a jansson)
find_library(LK_LIB_turbojpeg NAMES libturbojpeg.a turbojpeg)
find_library(LK_LIB_png16 NAMES libpng16.a png16)
find_library(LK_LIB_z NAMES libz.a z)
find_library(LK_LIB_nettle NAMES libnettle.a nettle)
find_path(LK_XXHASH_INCLUDE xxhash.h)        # header only: XXH_INLINE_ALL
find_path(LK_OPENSSL_INCLUDE openssl/ssl.h)  # headers only: loaded when TLS is asked for
set(missing "")
foreach(pair LIB_jansson=libjansson-dev LIB_turbojpeg=libturbojpeg0-dev LIB_png16=libpng-dev LIB_z=zlib1g-dev
    LIB_nettle=nettle-dev XXHASH_INCLUDE=libxxhash-dev OPENSSL_INCLUDE=libssl-dev)
  string(REGEX MATCH "(.*)=(.*)" pair ${pair})
  if(NOT LK_${CMAKE_MATCH_1})
    list(APPEND missing ${CMAKE_MATCH_2})
  endif()
endforeach()
if(missing)
  list(JOIN missing " " missing)
  message(FATAL_ERROR "Lockstep needs these Debian packages, or others with the same libraries: ${missing}")
endif()

add_library(lk_dependencies INTERFACE)
add_library(lk_shared_dependencies INTERFACE)

# Sets LK_SHARED_LIB_name to the form of a library that can be linked into liblockstep.so.
function(lk_find_for_shared name)
  if(LK_SHARED_LIB_${name})
    return()
  endif()
  execute_process(COMMAND ${CMAKE_C_COMPILER} -shared -Wl,--exclude-libs,ALL -Wl,--whole-archive ${LK_LIB_${name}}
      -Wl,--no-whole-archive -o ${CMAKE_BINARY_DIR}/CMakeFiles/try_${name}.so
    RESULT_VARIABLE status OUTPUT_QUIET ERROR_QUIET)
  if(status EQUAL 0)
    set(LK_SHARED_LIB_${name} ${LK_LIB_${name}} CACHE FILEPATH "${name} in liblockstep.so")
    return()
  endif()
  find_library(LK_SHARED_LIB_${name} NAMES lib${name}.so DOC "${name} in liblockstep.so")
  if(NOT LK_SHARED_LIB_${name})
    message(FATAL_ERROR "${LK_LIB_${name}} cannot be linked into liblockstep.so, and there is no "
      "lib${name}.so: install it, or build with -DLK_SHARED=OFF")
  endif()
endfunction()

foreach(name jansson turbojpeg png16 z nettle)
  target_link_libraries(lk_dependencies INTERFACE ${LK_LIB_${name}})
  if(LK_SHARED)
    lk_find_for_shared(${name})
    target_link_libraries(lk_shared_dependencies INTERFACE ${LK_SHARED_LIB_${name}})
  endif()
endforeach()

# ---- Optional ------------------------------------------------------------------------
# hwloc's headers (src/launch/topology.c), the MPIs (Mpi.cmake), oneDNN (Onednn.cmake), and liburing,
# without which threads read and write offloaded values.
find_path(LK_URING_INCLUDE liburing.h)
find_library(LK_LIB_uring NAMES liburing.a)
if(LK_URING_INCLUDE AND LK_LIB_uring)
  target_link_libraries(lk_dependencies INTERFACE ${LK_LIB_uring})
  target_link_libraries(lk_shared_dependencies INTERFACE ${LK_LIB_uring})
  set_source_files_properties(src/base/store_uring.c PROPERTIES COMPILE_DEFINITIONS LK_URING=1)
  set(LK_URING_PC "-luring ")
  set(LK_URING_CMAKE "uring;")
endif()
target_link_libraries(lk_dependencies INTERFACE m ${CMAKE_DL_LIBS})
target_link_libraries(lk_shared_dependencies INTERFACE m ${CMAKE_DL_LIBS})
