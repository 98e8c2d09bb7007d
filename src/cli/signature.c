/* signature.c -- runs ssh-keygen -Y.  See signature.h. */
#include "cli/signature.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

enum { PATH = 4096 };

/* Runs ssh-keygen with `input` (or NULL) as its standard input, and with a new file `output` (or
 * NULL) as its standard output.  Otherwise its output goes to stderr: stdout has the result.
 * Ctrl-C ends ssh-keygen, which may ask for a passphrase, and not this process.  Returns its exit
 * status, or -1 after an error, which is printed. */
static int run(const char *asker, const char *const *argv, const char *input, const char *output)
{
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t          how;
    const struct sigaction     ignored = { .sa_handler = SIG_IGN };
    struct sigaction           before;
    sigset_t                   interrupt;
    pid_t                      pid;
    int                        status = 0;
    (void)fflush(NULL);
    (void)sigemptyset(&interrupt);
    (void)sigaddset(&interrupt, SIGINT);
    (void)posix_spawnattr_init(&how);
    (void)posix_spawnattr_setsigdefault(&how, &interrupt);
    (void)posix_spawnattr_setflags(&how, POSIX_SPAWN_SETSIGDEF);
    (void)posix_spawn_file_actions_init(&actions);
    (void)posix_spawn_file_actions_addopen(&actions, STDIN_FILENO,
                                           input != NULL ? input : "/dev/null", O_RDONLY, 0);
    if (output != NULL)
        (void)posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, output,
                                               O_WRONLY | O_CREAT | O_EXCL, 0666);
    else
        (void)posix_spawn_file_actions_adddup2(&actions, STDERR_FILENO, STDOUT_FILENO);
    (void)sigaction(SIGINT, &ignored, &before);
    int error = posix_spawnp(&pid, "ssh-keygen", &actions, &how, (char *const *)(uintptr_t)argv,
                             environ);
    if (error == 0 && waitpid(pid, &status, 0) != pid)
        error = errno;
    (void)sigaction(SIGINT, &before, NULL);
    (void)posix_spawn_file_actions_destroy(&actions);
    (void)posix_spawnattr_destroy(&how);
    if (error == 0)
        return WIFEXITED(status) ? WEXITSTATUS(status) : 255;
    fprintf(stderr, "lockstep %s: cannot start ssh-keygen: %s; install OpenSSH's client (Debian "
                    "and Ubuntu: openssh-client; Fedora: openssh)\n", asker, strerror(error));
    return -1;
}

bool lki_sign(const char *asker, const char *file, const char *draft, const char *key)
{
    char              signature[PATH];
    const char *const argv[] = { "ssh-keygen", "-Y", "sign", "-n", LKI_SIGNATURE_NAMESPACE, "-f",
                                 key, NULL };
    if (snprintf(signature, sizeof signature, "%s.sig", draft) >= PATH)
        return false;
    int status = run(asker, argv, draft, signature);
    if (status > 0)
        fprintf(stderr, "lockstep %s: ssh-keygen could not sign '%s' with the key '%s'; give the "
                        "private key, or the public key of one in ssh-agent\n", asker, file, key);
    return status == 0;
}

bool lki_verify_signature(const char *asker, const char *file, const char *signers,
                          const char *identity)
{
    char              signature[PATH];
    const char *const space     = LKI_SIGNATURE_NAMESPACE;
    const char *const known[]   = { "ssh-keygen", "-Y",     "verify", "-n", space, "-f",
                                    signers, "-I", identity, "-s", signature, NULL };
    const char *const unknown[] = { "ssh-keygen", "-Y", "check-novalidate", "-n", space,
                                    "-s", signature, NULL };
    if (snprintf(signature, sizeof signature, "%s.sig", file) >= PATH)
        return false;
    if (access(signature, F_OK) != 0) {
        printf("signature: none, so anybody may have made or changed this statement\n");
        return signers == NULL;
    }
    int status = run(asker, signers != NULL ? known : unknown, file, NULL);
    if (status == 0 && signers != NULL)
        printf("signature: good, by %s\n", identity);
    else if (status == 0)
        printf("signature: good, by an unknown key, whose fingerprint is above; --signers and "
               "--identity check whose it is\n");
    else if (status > 0 && signers != NULL)
        printf("signature: not good: the statement was changed after it was signed, or it was not "
               "signed by a key of %s in '%s'\n", identity, signers);
    else if (status > 0)
        printf("signature: not good: the statement was changed after it was signed\n");
    return status == 0;
}
