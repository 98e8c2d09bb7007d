# src/tensor/isa/ holds the kernels' table once per instruction set; each file is compiled for its own.
# So are a few loops of other rooms.
# Sanitizers give every inlined lane its own stack slot: kernels call nothing, so 128 KiB do no harm.
set(frames $<$<NOT:$<CONFIG:Debug>>:-Wframe-larger-than=131072>)
# They would also compile for minutes: a null pointer and a place outside of an object are found by
# AddressSanitizer, too.
if(LK_SANITIZE)
  list(APPEND frames -fno-sanitize=null,object-size,pointer-overflow)
endif()
set_source_files_properties(src/tensor/isa/portable.c src/tensor/isa/amx_emulated.c PROPERTIES
  COMPILE_OPTIONS "${frames}")
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  # With the generic tuning gcc keeps addresses in vector registers.  Moving them back takes the
  # execution slots of the chains.
  set_source_files_properties(src/tensor/isa/avx512.c PROPERTIES COMPILE_OPTIONS
    "${frames};-mavx512f;-mavx512dq;-mavx512bw;-mavx512vl;-mavx2;-mfma;-mf16c;-mprefer-vector-width=512;-mtune=icelake-server")
  set_source_files_properties(src/tensor/isa/avx512_bf16.c PROPERTIES COMPILE_OPTIONS
    "${frames};-mavx512f;-mavx512dq;-mavx512bw;-mavx512vl;-mavx512bf16;-mavx2;-mfma;-mf16c;-mprefer-vector-width=512")
  set_source_files_properties(src/tensor/isa/amx.c PROPERTIES COMPILE_OPTIONS
    "${frames};-mamx-tile;-mamx-bf16;-mavx512f;-mavx512dq;-mavx512bw;-mavx512vl;-mavx2;-mfma;-mf16c;-mprefer-vector-width=512")
  set_source_files_properties(src/tensor/isa/avx2.c PROPERTIES COMPILE_OPTIONS "${frames};-mavx2;-mfma;-mf16c")
  set_source_files_properties(src/base/hash_avx512.c PROPERTIES COMPILE_OPTIONS "-mavx512f;-mprefer-vector-width=512")
  set_source_files_properties(src/base/hash_avx2.c PROPERTIES COMPILE_OPTIONS -mavx2)
  set_source_files_properties(src/data/lanes_avx512.c PROPERTIES COMPILE_OPTIONS "-mavx512f;-mprefer-vector-width=512")
  set_source_files_properties(src/data/lanes_avx2.c PROPERTIES COMPILE_OPTIONS -mavx2)
endif()

# gcc 12 for 64-bit ARM crashes on the portable vectors at -O3 (in its sink and loop passes).
if(CMAKE_SYSTEM_PROCESSOR STREQUAL aarch64 AND CMAKE_C_COMPILER_ID STREQUAL GNU AND
   CMAKE_C_COMPILER_VERSION VERSION_LESS 13)
  set_source_files_properties(src/tensor/isa/portable.c src/tensor/isa/amx_emulated.c PROPERTIES
    COMPILE_OPTIONS "${frames};-O2")
endif()

# gcc moves loads ahead of the steps that need them before it hands out registers, and then the sums of
# a micro-tile do not fit the 32 there are.
if(CMAKE_SYSTEM_PROCESSOR STREQUAL aarch64 AND CMAKE_C_COMPILER_ID STREQUAL GNU)
  set_source_files_properties(src/tensor/isa/neon.c PROPERTIES COMPILE_OPTIONS "${frames};-fno-schedule-insns")
endif()
