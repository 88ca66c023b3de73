/* environment.h - rank, world size and rendezvous address from the environment variables of a
 * launcher: torchrun, Open MPI, Slurm, MPICH. */
#pragma once
#include <glib.h>
#include <stdint.h>

/* Environment variables of each launcher, tried in this order. (mpirun may start its daemons
 * through Slurm; Slurm's variables then describe the daemons, so Slurm comes after Open MPI.)
 *
 * Columns: rank, world size, local rank, local world size (NULL: the launcher does not set the
 * variable), an id that distinguishes jobs. If a column has several names, the first variable that
 * is set counts.
 *
 *   torchrun: https://pytorch.org/docs/stable/elastic/run.html
 *   Open MPI: https://docs.open-mpi.org/en/v5.0.x/tuning-apps/environment-var.html
 *   MPICH and Intel MPI (Hydra): https://github.com/pmodels/mpich/blob/main/doc/wiki/how_to
 *   Slurm: https://slurm.schedmd.com/srun.html#SECTION_OUTPUT-ENVIRONMENT-VARIABLES
 *
 *     constant               word      rank, size, local rank, local size, job */
#define WEFT_LAUNCHER_LIST(X)                                                                      \
  X (WEFT_LAUNCHER_TORCHRUN, "torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE",   \
     "TORCHELASTIC_RUN_ID")                                                                        \
  X (WEFT_LAUNCHER_OPENMPI, "openmpi", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",             \
     "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE",                                   \
     "PMIX_NAMESPACE OMPI_MCA_ess_base_jobid")                                                     \
  X (WEFT_LAUNCHER_SLURM, "slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS SLURM_NTASKS",            \
     "SLURM_LOCALID", NULL, "SLURM_JOB_ID SLURM_JOBID")                                            \
  X (WEFT_LAUNCHER_MPICH, "mpich", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS",   \
     "PMI_JOBID")
#define WEFT_LAUNCHER_ID(id, word, ...) id,
enum weft_launcher { WEFT_LAUNCHER_LIST (WEFT_LAUNCHER_ID) WEFT_N_LAUNCHER };
#undef WEFT_LAUNCHER_ID
extern const char *const weft_launcher_words[];

struct weft_launch {
  enum weft_launcher launcher; /* WEFT_N_LAUNCHER: started without a launcher */
  uint32_t n, rank;            /* number of processes; rank of this process */
  uint32_t local_rank;         /* rank of this process among the processes of its machine */
  char *host;                  /* address of the rendezvous, which process 0 listens on */
  uint16_t port;
  char *token; /* identifies the job: equal in all its processes, different in other jobs */

  /* `secret` is the value of WEFT_SECRET. If that variable is not set, `secret_file` is the file
   * that contains the secret (secret.h): WEFT_SECRET_FILE if set; else, if the processes run on
   * several machines, "weft/secret" in the user's folder for settings, ~/.config. Both NULL: no
   * secret. */
  char *secret, *secret_file;
};
typedef struct weft_launch weft_launch;
void weft_launch_clear (weft_launch *launch);
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC (weft_launch, weft_launch_clear)

/* Reads the environment of this process through `get` (NULL: g_getenv). `asked` is the word of a
 * launcher, or "none", or "auto" or NULL to detect the launcher. Without a launcher, or with one
 * process, n is 1 and the strings are NULL. The caller clears *launch. */
typedef const char *(*weft_launch_getenv) (const char *name);
gboolean weft_launch_read (const char *asked, weft_launch_getenv get, struct weft_launch *launch,
                           GError **error);
