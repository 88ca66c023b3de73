/* processes.h - starts the running test file several times as torchrun, mpirun or srun would. Each
 * process gets `words` as arguments of `begin` of the test file (runner.h). */
#pragma once
#include "launch/environment.h"

struct process {
  struct _GSubprocess *started; /* NULL after process_wait(), when the process has ended */
  char *out, *err;
  int status; /* exit status, or 128 + number of the signal that ended the process */
};

struct processes {
  uint32_t n;
  struct process *at;
};

/* Starts n processes on this machine with the variables of a launcher, which name a rendezvous at
 * `port`. processes_clear() frees them. */
struct processes processes_start (const char *words, enum weft_launcher launcher, uint32_t n,
                                  uint16_t port);

/* Starts only the process of rank `rank`, with the variables that processes_start() gives it. */
struct process process_start (const char *words, enum weft_launcher launcher, uint32_t n,
                              uint32_t rank, uint16_t port);

/* Waits until the process has ended. Sets out, err and status. */
void process_wait (struct process *p);

/* Waits until all processes have ended. Sets the output, the errors and the exit status of each
 * process. */
void processes_wait (struct processes *p);

void process_clear (struct process *p);
void processes_clear (struct processes *p);

/* Asserts that the process ended with an error, and that its stderr contains `part`. */
void process_assert_told (const struct process *p, const char *part);

/* Returns a TCP port that is free now. */
uint16_t free_port (void);
