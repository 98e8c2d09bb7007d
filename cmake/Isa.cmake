# src/tensor/isa/ holds the kernels' table once per instruction set; each file is compiled for its own.
# So are a few loops of other rooms.
# Sanitizers give every inlined lane its own stack slot: kernels call nothing, so 128 KiB do no harm.
set(frames $<$<NOT:$<CONFIG:Debug>>:-Wframe-larger-than=131072>)
# They would also compile for minutes: a null pointer and a place outside of an object are found by
# AddressSanitizer, too.
if(LK_SANITIZE)
  list(APPEND frames -fno-sanitize=null,object-size,pointer-overflow)
endif()
# Functions with many accesses call AddressSanitizer instead of containing its checks: gcc then takes
# twice as long for a file.  Not so the kernels that train on this processor: a call looks at all bytes
# of a vector, the code in its place at the first and the last, and training took six times as long.
set(avx2_frames "${frames}")
set(avx512_frames "${frames}")
if(LK_SANITIZE MATCHES address AND CMAKE_C_COMPILER_ID STREQUAL GNU)
  list(APPEND frames --param=asan-instrumentation-with-call-threshold=100)
  file(STRINGS /proc/cpuinfo wide REGEX avx512dq LIMIT_COUNT 1)
  if(wide)
    set(avx2_frames "${frames}")
  else()
    set(avx512_frames "${frames}")
  endif()
endif()
set_source_files_properties(src/tensor/isa/portable.c src/tensor/isa/amx_emulated.c PROPERTIES
  COMPILE_OPTIONS "${frames}")
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  # With the generic tuning gcc keeps addresses in vector registers.  Moving them back takes the
  # execution slots of the chains.
  set_source_files_properties(src/tensor/isa/avx512.c src/tensor/isa/row_avx512.c PROPERTIES
    COMPILE_OPTIONS
    "${avx512_frames};-mavx512f;-mavx512dq;-mavx512bw;-mavx512vl;-mavx2;-mfma;-mf16c;-mprefer-vector-width=512;-mtune=icelake-server")
  set_source_files_properties(src/tensor/isa/avx512_bf16.c PROPERTIES COMPILE_OPTIONS
    "${frames};-mavx512f;-mavx512dq;-mavx512bw;-mavx512vl;-mavx512bf16;-mavx2;-mfma;-mf16c;-mprefer-vector-width=512")
  set_source_files_properties(src/tensor/isa/amx.c PROPERTIES COMPILE_OPTIONS
    "${frames};-mamx-tile;-mamx-bf16;-mavx512f;-mavx512dq;-mavx512bw;-mavx512vl;-mavx2;-mfma;-mf16c;-mprefer-vector-width=512")
  set_source_files_properties(src/tensor/isa/avx2.c src/tensor/isa/row_avx2.c PROPERTIES COMPILE_OPTIONS
    "${avx2_frames};-mavx2;-mfma;-mf16c")
  set_source_files_properties(src/base/hash_avx512.c PROPERTIES COMPILE_OPTIONS "-mavx512f;-mprefer-vector-width=512")
  set_source_files_properties(src/base/hash_avx2.c PROPERTIES COMPILE_OPTIONS -mavx2)
  set_source_files_properties(src/data/lanes_avx512.c PROPERTIES COMPILE_OPTIONS "-mavx512f;-mprefer-vector-width=512")
  set_source_files_properties(src/data/lanes_avx2.c PROPERTIES COMPILE_OPTIONS -mavx2)
endif()

# For the portable vectors gcc takes twice as long at -O3, and training with them is at most a few
# percent faster.  For 64-bit ARM gcc 12 crashes on them at -O3 (in its sink and loop passes).
if(CMAKE_C_COMPILER_ID STREQUAL GNU AND CMAKE_BUILD_TYPE STREQUAL Release AND
   LK_OPTIMIZATION STREQUAL -O3)
  set_source_files_properties(src/tensor/isa/portable.c PROPERTIES COMPILE_OPTIONS "${frames};-O2")
  if(CMAKE_SYSTEM_PROCESSOR STREQUAL aarch64)
    set_source_files_properties(src/tensor/isa/amx_emulated.c PROPERTIES COMPILE_OPTIONS "${frames};-O2")
  endif()
endif()

# gcc moves loads ahead of the steps that need them before it hands out registers, and then the sums of
# a micro-tile do not fit the 32 there are.
if(CMAKE_SYSTEM_PROCESSOR STREQUAL aarch64 AND CMAKE_C_COMPILER_ID STREQUAL GNU)
  set_source_files_properties(src/tensor/isa/neon.c PROPERTIES COMPILE_OPTIONS "${frames};-fno-schedule-insns")
endif()
