/* consumer.c -- the smallest program that uses the installed library; compiled as C and as C++. */
#include <lockstep/base.h>
#include <lockstep/tensor.h>
#include <stdio.h>

int main(void)
{
    lk_exec *exec = NULL;
    if (lk_exec_open(&exec, 1, "portable") != LK_OK)
        return 1;
    printf("%s %s\n", LK_VERSION, lk_exec_isa(exec));
    lk_exec_free(exec);
    return 0;
}
