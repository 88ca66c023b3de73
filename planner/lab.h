/* lab.h - exercises with a checker: docs/labs/NAME.ini beside the page docs/labs/NAME.md.
 *
 *   [lab]
 *   number = 1                        position in the list of labs
 *   title = Ring and tree all-reduce
 *   minutes = 40
 *
 *   [job ring]                        a job of the lab, as flags
 *   flags = --model gpt2-medium --topology dgx-a100 --gpus 8
 *
 *   [question 1]
 *   ask = How many bytes does every GPU send in one all-reduce of the gradients?
 *   value = 2 * 7 / 8 * ring.bytes.all_reduce
 *   unit = B                          unit of the answer; empty: a plain number
 *   within = 0.01                     largest relative error of a right answer
 *   look = what to look at, if the answer is wrong
 *   mistake_1 = ring.bytes.all_reduce : what a learner who finds this value has missed
 *
 * The file has no results: `value` is an expression (arithmetic.h) over numbers that Weft computes
 * when answers are checked, so a lab is as right as Weft is. Names in it:
 *
 *   JOB.PATH              a number of the weft.sim/1 document of the job: ring.iteration.time_s,
 *                         ring.memory.roles.0.by_kind.optimizer
 *   JOB.count.KIND        ops of this kind (core/ops.def) in the program of role 0
 *   JOB.bytes.KIND        bytes of these ops, payloads of transfers
 *   JOB.flops.KIND        FLOPs of these ops
 *   JOB.closed.KIND       seconds of the longest of them by closed formula, without contention */
#pragma once
#include "core/base/conf.h"

#define WEFT_LAB_FOLDER "docs/labs"
#define WEFT_LAB_SUFFIX ".ini"
/* Section of a file of answers; its keys are the numbers of the questions. */
#define WEFT_LAB_ANSWERS "answers"

struct weft_lab_question {
  const char *ask, *value, *unit, *look; /* owned by the lab */
  double within;
  GPtrArray *mistake; /* struct weft_conf_entry *, owned by the lab: the rows mistake_N */
};

typedef struct weft_lab {
  weft_conf *conf;
  char *name;              /* "ring", the name of the file */
  const char *title;       /* owned by `conf` */
  unsigned minutes;
  GHashTable *jobs;        /* name of a job -> its flags, both owned by `conf` */
  GArray *question;        /* struct weft_lab_question; number 1 first */
} weft_lab;

/* Reads a lab by its name, its number among weft_lab_names(), or its path. */
weft_lab *weft_lab_load (const char *name, GError **error);
void weft_lab_free (weft_lab *lab);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (weft_lab, weft_lab_free)

/* Names of the bundled labs in the order of their numbers, NULL-terminated: lab 1 is the first. The
 * caller frees with g_strfreev(). */
char **weft_lab_names (void);

enum weft_lab_verdict { WEFT_LAB_NONE, WEFT_LAB_RIGHT, WEFT_LAB_WRONG };

struct weft_lab_mark {
  enum weft_lab_verdict verdict;
  const char *look; /* WEFT_LAB_WRONG: a hint; owned by the lab */
};

/* Checks the answers of a file. Returns a mark for each question, which the caller frees; NULL with
 * an error if the file has an unknown question or an answer that is no number of the unit. */
struct weft_lab_mark *weft_lab_check (const weft_lab *lab, const char *path, GError **error);

/* The right answer to a question, in its unit, for tests. */
gboolean weft_lab_value (const weft_lab *lab, unsigned question, double *value, GError **error);
