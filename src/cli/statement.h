/* cli/statement.h -- `lockstep verify FILE`: verifies a statement of `lockstep attest`. */
#ifndef LKI_CLI_STATEMENT_H
#define LKI_CLI_STATEMENT_H

/* Runs `verify` with a statement as its first argument.  Returns the exit status. */
int lki_verify_statement(int argc, char **argv);

#endif
