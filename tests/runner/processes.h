/* processes.h - starts the running test several times as torchrun, mpirun or srun would; each
 * process gets `words` in its file's `begin` (runner.h). */
#pragma once
#include "launch/environment.h"

struct process {
  struct _GSubprocess *started; /* NULL: it has ended and was waited for */
  char *out, *err;
  int status; /* exit status; 128 + signal */
};

struct processes {
  uint32_t n;
  struct process *at;
};

/* Starts n processes on this machine with a launcher's variables, with their rendezvous at a
 * port. */
struct processes processes_start (const char *words, enum weft_launcher launcher, uint32_t n,
                                  uint16_t port);

/* Starts one of them: its variables say rank `rank` of n, however many are started. */
struct process process_start (const char *words, enum weft_launcher launcher, uint32_t n,
                              uint32_t rank, uint16_t port);

/* Waits until it has ended; fills out, err and status. */
void process_wait (struct process *p);
void processes_wait (struct processes *p);
void process_clear (struct process *p);
void processes_clear (struct processes *p);

/* Asserts that it failed with a message that contains this part. */
void process_assert_told (const struct process *p, const char *part);

/* A port that is free at this moment. */
uint16_t free_port (void);
