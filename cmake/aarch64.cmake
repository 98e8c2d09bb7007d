# Cross compilation to 64-bit ARM with Debian's compiler; ctest runs the programs under qemu-user.
# Libraries are Debian's own for arm64, side by side with the host's (see ./dev check).
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_LIBRARY_PATH /usr/lib/aarch64-linux-gnu)
set(CMAKE_IGNORE_PATH /usr/lib/x86_64-linux-gnu)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64)
# Under qemu-user 7.2 a dynamically linked program hangs in its first pthread_create(); a static one
# does not.  Tests stand on the shared cmocka, so only the command is linked so (LK_STATIC_COMMAND).
set(LK_STATIC_COMMAND ON)
