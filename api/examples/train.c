/* Trains a model on a text file with its own loop.
 *
 *     cc train.c $(pkg-config --cflags --libs weft) -o train
 *     ./train FILE STEPS [FLAGS]
 *     ./train README.md 20 --model gpt2-nano --gpus 2 --global-batch-size 8
 *
 * FLAGS are flags of `weft train`, which prints the same numbers with the same flags. */
#include <stdio.h>
#include <stdlib.h>
#include <weft/weft.h>

#define SEED 1234

static int
fail (const weft_error *error)
{
  fprintf (stderr, "train: %s\n", error->message);
  return error->status;
}

/* Runs the microbatches of one step. The backward of every microbatch but the last only accumulates
 * gradients; the last one also launches their reduction. */
static bool
accumulate (weft_module *module, const weft_job_facts *job, weft_batches *batches, int32_t *tokens,
            weft_error *error)
{
  uint64_t position = weft_module_steps (module) * job->global_batch_size;

  if (job->stages > 1) /* this call runs the whole pipeline schedule */
    return weft_batches_read (batches, position, tokens, error) &&
           weft_module_forward_backward (module, tokens, error);
  for (uint32_t micro = 0; micro < job->microbatches; micro++) {
    bool last = micro + 1 == job->microbatches;
    if ((!last && !weft_module_no_sync_begin (module, error)) ||
        !weft_batches_read_micro (batches, position, micro, tokens, error) ||
        !weft_module_forward (module, tokens, error) || !weft_module_backward (module, error) ||
        (!last && !weft_module_no_sync_end (module, error)))
      return false;
  }
  return true;
}

static bool
step (weft_module *module, const weft_job_facts *job, weft_batches *batches, int32_t *tokens,
      weft_error *error)
{
  const weft_adam adam = WEFT_ADAM_DEFAULTS;
  weft_step_result result;

  if (!weft_module_zero_grad_buffer (module, error) ||
      !accumulate (module, job, batches, tokens, error) ||
      !weft_module_finalize_model_grads (module, error) ||
      !weft_module_step (module, &adam, &result, error))
    return false;
  printf ("step %3lu  loss %.17g  norm %.17g%s\n", (unsigned long) weft_module_steps (module),
          result.loss, result.grad_norm, result.skipped ? "  skipped" : "");
  return true;
}

int
main (int argc, char **argv)
{
  weft_error error = { WEFT_STATUS_BAD_INPUT, "wanted FILE STEPS [words of weft train]" };
  weft_job_facts facts;

  if (argc < 3)
    return fail (&error);
  weft_job *job = weft_job_open (argc - 3, (const char *const *) argv + 3, &error);
  if (!job)
    return fail (&error);
  weft_job_describe (job, &facts);
  weft_batches *batches = weft_batches_open (job, argv[1], SEED, true, &error);
  weft_module *module = batches ? weft_module_open (job, NULL, &error) : NULL;
  int32_t *tokens =
      malloc (sizeof *tokens * facts.global_batch_size * ((size_t) facts.seq_length + 1));
  bool ok = module && tokens;

  if (ok)
    weft_module_init_weights (module, SEED);
  for (int i = 0; ok && i < atoi (argv[2]); i++)
    ok = step (module, &facts, batches, tokens, &error);
  if (ok && getenv ("EXPORT"))
    ok = weft_module_export_safetensors (module, getenv ("EXPORT"), &error);
  free (tokens);
  weft_module_close (module);
  weft_batches_close (batches);
  weft_job_close (job);
  return ok ? 0 : fail (&error);
}
