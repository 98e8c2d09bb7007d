# Libraries are linked statically where the system ships them so: the command needs only libc.
find_package(Threads REQUIRED)
add_library(lk_dependencies INTERFACE)
foreach(name jansson turbojpeg png16 z nettle)
  find_library(LK_LIB_${name} NAMES lib${name}.a ${name} REQUIRED)
  target_link_libraries(lk_dependencies INTERFACE ${LK_LIB_${name}})
endforeach()
find_path(LK_XXHASH_INCLUDE xxhash.h REQUIRED)   # header only: XXH_INLINE_ALL
find_path(LK_OPENSSL_INCLUDE openssl/ssl.h REQUIRED) # headers only: loaded when TLS is asked for
# Optional: without it threads read and write offloaded values.
find_path(LK_URING_INCLUDE liburing.h)
find_library(LK_LIB_uring NAMES liburing.a)
if(LK_URING_INCLUDE AND LK_LIB_uring)
  target_link_libraries(lk_dependencies INTERFACE ${LK_LIB_uring})
  set_source_files_properties(src/base/store_uring.c PROPERTIES COMPILE_DEFINITIONS LK_URING=1)
  set(LK_URING_PC "-luring ")
  set(LK_URING_CMAKE "uring;")
endif()
target_link_libraries(lk_dependencies INTERFACE m ${CMAKE_DL_LIBS})
