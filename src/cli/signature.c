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
#include <time.h>
#include <unistd.h>

#include "cli/signals.h"

extern char **environ;

enum { PATH = 4096 };

/* Waits for ssh-keygen, and ends it if a signal arrives that is held.  Returns 0 or an errno. */
static int await(pid_t pid, int *status, const sigset_t *before)
{
    enum { PATIENCE = 100 }; /* moments until it is killed */
    const struct timespec moment = { .tv_nsec = 10000000 };
    pid_t                 ended;
    for (int asked = 0; (ended = waitpid(pid, status, WNOHANG)) != pid;) {
        if (ended < 0 && errno != EINTR)
            return errno;
        if (lki_is_asked_to_end(before))
            (void)kill(pid, asked++ < PATIENCE ? SIGTERM : SIGKILL);
        (void)nanosleep(&moment, NULL);
    }
    return 0;
}

/* Runs ssh-keygen with `input` (or NULL) as its standard input, and with a new file `output` (or
 * NULL) as its standard output.  Otherwise its output goes to stderr: stdout has the result.
 * Signals are held, and `before` is the mask before.  Returns the exit status, or -1 after an
 * error, which is printed. */
static int run(const char *asker, const char *const *argv, const char *input, const char *output,
               const sigset_t *before)
{
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t          how;
    pid_t                      pid;
    int                        status = 0;
    (void)fflush(NULL);
    (void)posix_spawnattr_init(&how);
    (void)posix_spawnattr_setsigmask(&how, before);
    (void)posix_spawnattr_setflags(&how, POSIX_SPAWN_SETSIGMASK);
    (void)posix_spawn_file_actions_init(&actions);
    (void)posix_spawn_file_actions_addopen(&actions, STDIN_FILENO,
                                           input != NULL ? input : "/dev/null", O_RDONLY, 0);
    if (output != NULL)
        (void)posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, output,
                                               O_WRONLY | O_CREAT | O_EXCL, 0666);
    else
        (void)posix_spawn_file_actions_adddup2(&actions, STDERR_FILENO, STDOUT_FILENO);
    int error = posix_spawnp(&pid, "ssh-keygen", &actions, &how, (char *const *)(uintptr_t)argv,
                             environ);
    if (error == 0)
        error = await(pid, &status, before);
    (void)posix_spawn_file_actions_destroy(&actions);
    (void)posix_spawnattr_destroy(&how);
    if (error == 0)
        return WIFEXITED(status) ? WEXITSTATUS(status) : 255;
    fprintf(stderr, "lockstep %s: cannot start ssh-keygen: %s; install OpenSSH's client (Debian "
                    "and Ubuntu: openssh-client; Fedora: openssh)\n", asker, strerror(error));
    return -1;
}

bool lki_sign(const char *asker, const char *file, const char *draft, const char *key,
              const sigset_t *before)
{
    char              signature[PATH];
    const char *const argv[] = { "ssh-keygen", "-Y", "sign", "-n", LKI_SIGNATURE_NAMESPACE, "-f",
                                 key, NULL };
    if (snprintf(signature, sizeof signature, "%s.sig", draft) >= PATH)
        return false;
    int status = run(asker, argv, draft, signature, before);
    if (status > 0 && !lki_is_asked_to_end(before))
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
    sigset_t          before;
    if (snprintf(signature, sizeof signature, "%s.sig", file) >= PATH)
        return false;
    if (access(signature, F_OK) != 0) {
        printf("signature: none, so anybody may have made or changed this statement\n");
        return signers == NULL;
    }
    lki_hold_signals(&before);
    int status = run(asker, signers != NULL ? known : unknown, file, NULL, &before);
    lki_release_signals(&before);
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
