/* cli/signature.h -- signatures of files in OpenSSH's format, made and verified by ssh-keygen. */
#ifndef LKI_CLI_SIGNATURE_H
#define LKI_CLI_SIGNATURE_H

#include <signal.h>
#include <stdbool.h>

#define LKI_SIGNATURE_NAMESPACE "lockstep"

/* Signs a draft of `file` with an SSH key, into DRAFT.sig, which must not be there.  Signals that
 * end the command are held (signals.h), with the mask `before`; one that arrives ends ssh-keygen.
 * Prints errors, which name `file`.  Returns false after one, and after a signal. */
bool lki_sign(const char *asker, const char *file, const char *draft, const char *key,
              const sigset_t *before);

/* Verifies FILE.sig.  `signers` is a file of allowed signers (ssh-keygen(1)) and `identity` one of
 * them; both NULL: any key.  Prints the result, and errors.  Returns false unless it is good. */
bool lki_verify_signature(const char *asker, const char *file, const char *signers,
                          const char *identity);

#endif
