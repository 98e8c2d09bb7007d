/* main.c -- the `lockstep` command. */
#include <stdio.h>

#include "lockstep/base.h"

int main(void)
{
    printf("lockstep %s\n", LK_VERSION);
    return 0;
}
