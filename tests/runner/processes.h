/* processes.h - the running test several times at once, as torchrun, mpirun or srun would start it:
 * the file that runs gets `words` in its `begin` (runner.h). */
#pragma once
#include "launch/environment.h"

struct process {
  struct _GSubprocess *started; /* NULL: it has ended, and been looked at */
  char *out, *err;
  int status; /* of the exit; 128 + signal */
};

struct processes {
  uint32_t n;
  struct process *at;
};

/* Variables of a launcher for n processes on this machine that meet at a port. */
struct processes processes_start (const char *words, enum weft_launcher launcher, uint32_t n,
                                  uint16_t port);

/* One of them: process `rank` of n, as its variables say, however many there really are. */
struct process process_start (const char *words, enum weft_launcher launcher, uint32_t n,
                              uint32_t rank, uint16_t port);

/* Until it has ended; fills out, err and status. */
void process_wait (struct process *p);
void processes_wait (struct processes *p);
void process_clear (struct process *p);
void processes_clear (struct processes *p);

/* It has failed, and said so in words with this part. */
void process_assert_told (const struct process *p, const char *part);

/* A port that nobody has at this moment. */
uint16_t free_port (void);
