# How all our code is compiled.  Warnings are errors in our own builds only (LK_WERROR).
# Contraction is off by the exactness contract: fma only where the code says fma.  `fast` is for
# bench/exactness alone, whose controls prove that they see the difference.
set(LK_FP_CONTRACT off CACHE STRING "What -ffp-contract= is; anything but off breaks exactness")
add_library(lk_warnings INTERFACE)
target_compile_options(lk_warnings INTERFACE
  -ffp-contract=${LK_FP_CONTRACT}
  -fno-math-errno              # sqrt is one instruction; no value changes
  -fvisibility=hidden -fno-common -fno-strict-aliasing
  -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wsign-conversion -Wdouble-promotion
  -Wfloat-conversion -Wundef -Wvla -Wstrict-prototypes -Wmissing-prototypes -Wold-style-definition
  -Wwrite-strings -Wcast-qual -Wpointer-arith -Wformat=2 -Wimplicit-fallthrough -Wswitch-enum
  $<$<NOT:$<CONFIG:Debug>>:-Wframe-larger-than=16384>  # without optimisation frames are larger
  $<$<C_COMPILER_ID:GNU>:-Wlogical-op -Wduplicated-cond -Wjump-misses-init -Wno-psabi>
  $<$<C_COMPILER_ID:Clang>:-Wcomma -Wno-gnu-zero-variadic-macro-arguments -Wno-psabi>
  $<$<BOOL:${LK_WERROR}>:-Werror>)
target_compile_definitions(lk_warnings INTERFACE _GNU_SOURCE)
# Messages of internal errors name source files by their paths from the build folder, so that programs
# built in any folder have the same bytes.  ccache makes paths relative by itself (./dev asks it to),
# and would have to forget what it has if the options changed.
if(NOT CMAKE_C_COMPILER_LAUNCHER MATCHES ccache)
  file(RELATIVE_PATH src ${PROJECT_BINARY_DIR} ${PROJECT_SOURCE_DIR}/src)
  target_compile_options(lk_warnings INTERFACE -fmacro-prefix-map=${PROJECT_SOURCE_DIR}/src=${src})
endif()
if(LK_SANITIZE)
  # -O1: with ASan, gcc takes half as long again for -O2.
  add_compile_options(-fsanitize=${LK_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all -O1)
  add_link_options(-fsanitize=${LK_SANITIZE})
  # An undefined operation is an illegal instruction, which AddressSanitizer reports with its function
  # and line (handle_sigill in ./dev).  The texts of the undefined-behaviour sanitizer are 10 MB of
  # relocated data in each program, with which a process takes twice as long to start and to end.
  if(CMAKE_C_COMPILER_ID STREQUAL GNU AND LK_SANITIZE MATCHES "address.*undefined")
    add_compile_options(-fsanitize-undefined-trap-on-error)
  endif()
endif()
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()
# LK_ASSERT stays on in every build, so NDEBUG is never defined.
set(LK_OPTIMIZATION -O3 CACHE STRING "How release builds are optimised")
set(CMAKE_C_FLAGS_RELEASE "${LK_OPTIMIZATION}")
# -g1: lines and functions for the sanitizers' reports; to follow variables through the kernels
# takes the compiler as long as the kernels themselves.
set(CMAKE_C_FLAGS_RELWITHDEBINFO "-O2 -g1")
