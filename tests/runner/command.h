/* command.h - weft as a shell runs it: exit status, stdout and stderr. */
#pragma once

struct answer {
  char *out, *err;
  int status; /* of the exit */
};

/* `weft` with these words, separated by single blanks, in the current folder.  Caller frees. */
struct answer weft_test_answer (const char *words);
void weft_test_answer_free (struct answer *answer);

/* Fails unless it is refused: this status, nothing on stdout, and a message that begins with
 * "weft: " and holds `part`. */
void weft_test_refused (const char *words, int status, const char *part);
