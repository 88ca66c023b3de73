"""The Python package, installed from its wheel: every number is that of the command, and tables are
views of the library's memory.  tests/python/test_python.c runs this file; WEFT names the command.
"""

import csv
import gc
import json
import math
import os
import subprocess
import tempfile
import unittest
from pathlib import Path

import numpy

import weft

COMMAND = os.environ["WEFT"]
TEXT = os.environ["WEFT_TEXT"]  # a text to train on
LARGE = {"model": "gpt2-xl", "topology": "dgx-a100", "nodes": 1, "global_batch_size": 64}
STAGED = {**LARGE, "pipeline_model_parallel_size": 2, "use_distributed_optimizer": True}
SMALL = {"model": "gpt2-nano", "num_layers": 2, "seq_length": 32, "gpus": 2,
         "global_batch_size": 4}


def flags(settings):
    return [f"--{name.replace('_', '-')}" + ("" if value is True else f"={value}")
            for name, value in settings.items()]


def command(*words):
    """Runs the command and returns its output, parsed as JSON."""
    done = subprocess.run([COMMAND, *words], check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


def whole_step(module, tokens, **adam):
    module.zero_grad_buffer()
    module.forward_backward(tokens)
    module.finalize_model_grads()
    return module.step(**adam)


class Predictions(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.job = weft.Job(**STAGED)
        cls.step = cls.job.simulate()

    def test_the_report_is_that_of_the_command(self):
        printed = command("sim", *flags(STAGED), "--json")
        mine = self.step.report
        self.assertEqual(mine["schema"], "weft.sim/1")
        for part in ("job", "iteration", "overlap", "memory"):
            self.assertEqual(mine[part], printed[part], part)
        self.assertEqual(self.step.seconds, printed["iteration"]["time_s"])
        self.assertEqual(self.step.numbers.peak_bytes, printed["memory"]["peak_bytes"])

    def test_the_timeline_ends_when_the_step_ends(self):
        timeline = self.step.timeline
        self.assertEqual(len(timeline), sum(len(self.job.ops(role)) for role in (0, 1)))
        self.assertEqual(numpy.nanmax(timeline["end"]), self.step.seconds)
        self.assertEqual(timeline.column("end").unit, "s")
        rows = timeline["rank"] == 0
        self.assertEqual(timeline["ranks"][rows][0], self.job.facts.replicas)

    def test_compute_is_the_sum_of_kernels(self):
        timeline, total = self.step.timeline, 0.0
        for role in (0, 1):
            mine = timeline["role"] == role
            lane = self.job.ops(role)
            kernel = lane["lane"] == lane.column("lane").words.index("gpu")
            seconds = (timeline["end"] - timeline["begin"])[mine]
            total += numpy.nansum(seconds[kernel]) / self.job.facts.stages
        self.assertTrue(math.isclose(total, self.step.numbers.compute_s, rel_tol=1e-9))

    def test_clock_has_no_contention(self):
        self.assertLessEqual(self.job.simulate("clock").seconds, self.step.seconds)
        with self.assertRaisesRegex(weft.WeftError, "wanted sim or clock"):
            self.job.simulate("guess")

    def test_ops_and_buffers_are_those_of_the_command(self):
        printed = command("program", *flags(STAGED), "--role", "1", "--json")
        ops, buffers = self.job.ops(1).to_dict(), self.job.buffers(1).to_dict()
        for name in ("op", "kind", "lane", "axis", "label", "flops", "bytes", "dtype"):
            self.assertEqual(ops[name], [op[name] for op in printed["ops"]], name)
        for name in ("layer", "micro"):
            self.assertEqual(ops[name], [-1 if op[name] is None else op[name]
                                         for op in printed["ops"]], name)
        for name in ("kind", "pool", "bytes", "label"):
            self.assertEqual(buffers[name], [row[name] for row in printed["buffers"]], name)
        edges = [(op["op"], before) for op in printed["ops"] for before in op["after"]]
        after = self.job.dependencies(1)
        self.assertEqual(list(zip(after["op"].tolist(), after["after"].tolist())), edges)
        uses = self.job.uses(1)
        self.assertEqual(len(uses), sum(len(op["uses"]) for op in printed["ops"]))

    def test_memory_adds_up_to_the_peak(self):
        memory = self.job.memory()
        for role in self.step.report["memory"]["roles"]:
            mine = memory["role"] == role["role"]
            self.assertEqual(int(memory["bytes"][mine].sum()), role["peak_bytes"])

    def test_words_of_errors_are_those_of_the_command(self):
        with self.assertRaisesRegex(weft.WeftError, "did you mean --tensor-model-parallel-size"):
            weft.Job(**SMALL, tensor_model_paralel_size=2)
        with self.assertRaises(weft.WeftError) as refused:
            weft.Job(**SMALL, tensor_model_parallel_size=3)
        self.assertEqual(refused.exception.status, weft.Status.BAD_INPUT)
        with self.assertRaisesRegex(weft.WeftError, "found role 2, wanted 0..1"):
            self.job.ops(2)

    def test_a_job_file_is_read_and_overridden(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "job.ini")
            path.write_text("[model]\nconfig = gpt2-nano\n[cluster]\ntopology = cpu\ngpus = 2\n"
                            "[train]\nglobal_batch_size = 4\n")
            self.assertEqual(weft.Job(path).facts.ranks, 2)
            self.assertEqual(weft.Job(path, gpus=4).facts.ranks, 4)


class Tables(unittest.TestCase):
    def test_columns_are_views_and_keep_the_table(self):
        job = weft.Job(**STAGED)
        table = job.simulate().timeline
        begin = table["begin"]
        self.assertFalse(begin.flags.owndata)
        self.assertFalse(begin.flags.writeable)
        self.assertTrue(numpy.shares_memory(begin, table["begin"]))
        before = begin.copy()
        del table, job
        gc.collect()
        self.assertTrue(numpy.array_equal(begin, before, equal_nan=True))

    def test_a_simulation_keeps_its_job(self):
        step = weft.Job(**LARGE).simulate()
        gc.collect()
        self.assertEqual(len(step.timeline), len(step.job.ops()))

    def test_pandas_shares_the_memory_of_numbers(self):
        try:
            import pandas  # noqa: F401
        except ImportError:
            self.skipTest("no pandas")
        ops = weft.Job(**STAGED).ops()
        frame = ops.to_pandas()
        self.assertTrue(numpy.shares_memory(frame["flops"].to_numpy(), ops["flops"]))
        self.assertEqual(frame["kind"].tolist(), ops.to_dict()["kind"])
        self.assertEqual(frame.attrs["units"]["bytes"], "B")

    def test_unknown_columns_are_named(self):
        with self.assertRaisesRegex(KeyError, "wanted one of op, kind"):
            weft.Job(**SMALL).ops()["flop"]

    def test_knobs_are_those_of_the_command(self):
        printed = command("knobs", "--json")
        self.assertEqual(weft.knobs().to_dict()["name"], [knob["name"] for knob in printed])


class Searches(unittest.TestCase):
    SEARCH = {**LARGE, "micro_batch_size": 1, "recompute_granularity": "none",
              "context_parallel_size": 1}

    def test_the_ranking_is_that_of_the_command(self):
        printed = command("plan", *flags(self.SEARCH), "--finalists", "3", "--json")
        phases = set()
        ranking = weft.plan(**self.SEARCH, finalists=3,
                            progress=lambda phase, done, of, best: phases.add(phase))
        self.assertEqual(len(ranking), 3)
        self.assertEqual(ranking.space, printed["space"])
        self.assertEqual([strategy.seconds for strategy in ranking],
                         [best["iteration"]["time_s"] for best in printed["best"]])
        self.assertLessEqual(len(ranking.table), ranking.space)
        self.assertGreaterEqual(len(ranking.table), ranking.counts["simulated"])
        self.assertEqual(sum(ranking.counts.values()) - ranking.counts["simulated"],
                         ranking.space)
        self.assertTrue(phases)

    def test_the_words_of_a_strategy_open_its_job(self):
        best = weft.plan(**self.SEARCH, finalists=1)[0]
        step = best.job().simulate()
        self.assertTrue(math.isclose(step.seconds, best.seconds, rel_tol=1e-6))

    def test_progress_can_end_a_search(self):
        with self.assertRaisesRegex(weft.WeftError, "stopped before a strategy was simulated"):
            weft.plan(**self.SEARCH, progress=lambda *now: False)

    def test_a_model_that_fits_nowhere_is_infeasible(self):
        with self.assertRaises(weft.WeftError) as refused:
            weft.plan(model="gpt3-175b", topology="dgx-a100", gpus=8, global_batch_size=64)
        self.assertEqual(refused.exception.status, weft.Status.INFEASIBLE)

    def test_a_sweep_is_that_of_the_command(self):
        table = weft.sweep({"tp": [1, 2, 3], "overlap_grad_reduce": [True, False]},
                           **LARGE).to_dict()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "sweep.csv")
            subprocess.run([COMMAND, "sweep", "tp=1,2,3", "overlap_grad_reduce=true,false",
                            *flags(LARGE), "--csv", str(path)], check=True, capture_output=True)
            rows = list(csv.DictReader(path.read_text().splitlines()))
        self.assertEqual(table["tp"], [row["tp"] for row in rows])
        self.assertEqual(table["fate"], [row["fate"] for row in rows])
        for mine, row in zip(table["step_s"], rows):
            self.assertTrue(math.isnan(mine) if not row["step_s"]
                            else math.isclose(mine, float(row["step_s"]), rel_tol=1e-9))


class Training(unittest.TestCase):
    def test_losses_are_those_of_the_command_bit_for_bit(self):
        done = subprocess.run([COMMAND, "train", *flags(SMALL), "--data", TEXT, "--steps", "4",
                               "--seed", "3", "--json"], check=True, capture_output=True,
                              text=True)
        printed = [json.loads(line) for line in done.stdout.splitlines()[:4]]
        job = weft.Job(**SMALL)
        module, batches = weft.Module(job), weft.Batches(job, TEXT, seed=3)
        module.init_weights(seed=3)
        for i, line in enumerate(printed):
            result = whole_step(module, batches.read(i * job.facts.global_batch_size),
                                lr=line["lr"])
            self.assertEqual((result.loss, result.grad_norm), (line["loss"], line["grad_norm"]))
        self.assertEqual(module.steps, 4)

    def test_microbatches_are_called_one_by_one(self):
        job = weft.Job(**SMALL, overlap_grad_reduce=True)
        whole, single = weft.Module(job), weft.Module(job, stress=5)
        batches = weft.Batches(job, TEXT, shuffle=False)
        whole.init_weights(1)
        single.init_weights(1)
        wanted = whole_step(whole, batches.read(0))
        single.zero_grad_buffer()
        with single.no_sync():
            single.forward(batches.read_micro(0, 0))
            single.backward()
        single.forward(batches.read_micro(0, 1))
        single.backward()
        single.finalize_model_grads()
        self.assertEqual(single.step(), wanted)

    def test_a_call_at_the_wrong_point_names_the_next_one(self):
        module = weft.Module(weft.Job(**SMALL))
        module.init_weights(1)
        with self.assertRaises(weft.WeftError) as refused:
            module.backward()
        self.assertEqual(refused.exception.status, weft.Status.ORDER)
        self.assertIn(module.wants, str(refused.exception))
        module.zero_grad_buffer()
        with self.assertRaisesRegex(ValueError, r"wanted \(4, 33\)"):
            module.forward_backward(numpy.zeros((4, 32)))

    def test_tensors_are_views_that_can_be_written(self):
        job = weft.Job(**SMALL)
        module, batches = weft.Module(job), weft.Batches(job, TEXT, shuffle=False)
        module.init_weights(1)
        tokens = batches.read(0)
        before = module.evaluate(tokens)
        weights = module.state_dict(keep_vars=True)
        tensor = weights["final_norm.weight"]
        view = tensor.data(0)
        self.assertFalse(module.state_dict()["final_norm.weight"].data(0).flags.writeable)
        view[:] = 0
        module.broadcast_params()
        self.assertTrue(numpy.array_equal(tensor.numpy(), numpy.zeros(tensor.shape)))
        after = module.evaluate(tokens)
        self.assertNotEqual(after, before)
        unseen = module.load_state_dict({"final_norm.weight": numpy.ones(tensor.shape),
                                         "no.such": numpy.ones(3)}, strict=False)
        self.assertIn("no.such", unseen[0])
        self.assertEqual(module.evaluate(tokens), before)
        with self.assertRaisesRegex(weft.WeftError, "no.such"):
            module.load_state_dict({"no.such": numpy.ones(3)})

    def test_gradients_are_complete_after_finalize(self):
        job = weft.Job(**SMALL)
        module, batches = weft.Module(job), weft.Batches(job, TEXT, shuffle=False)
        module.init_weights(1)
        module.zero_grad_buffer()
        module.forward_backward(batches.read(0))
        module.finalize_model_grads()
        weights = module.state_dict(keep_vars=True)
        squares = sum(float((weights[name].grad().astype(float) ** 2).sum()) for name in weights)
        self.assertTrue(math.isclose(math.sqrt(squares), module.step().grad_norm, rel_tol=1e-6))

    def test_checkpoints_resume(self):
        job = weft.Job(**SMALL)
        batches = weft.Batches(job, TEXT, shuffle=False)
        first, second = weft.Module(job), weft.Module(job)
        first.init_weights(1)
        whole_step(first, batches.read(0))
        with tempfile.TemporaryDirectory() as folder:
            first.save_checkpoint(folder, position=4, seed=9)
            self.assertEqual(second.load_checkpoint(folder), (4, 9))
            first.export_safetensors(Path(folder, "model.safetensors"))
            self.assertTrue(Path(folder, "model.safetensors").stat().st_size)
        self.assertEqual(whole_step(second, batches.read(4)), whole_step(first, batches.read(4)))


if __name__ == "__main__":
    unittest.main()
