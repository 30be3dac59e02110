# Runs an exported bundle in ONNX Runtime, from contract.json alone.
from __future__ import annotations

from pathlib import Path
from typing import Dict, Iterable, Iterator, List, Optional, Sequence, Tuple

import numpy as np
import onnxruntime

from transload.contract import Contract, Step, shape_text
from transload.embedding import Embedding, check_tokens
from transload.error import CacheError, ContractError, UsageError
from transload.kv_cache import KvCache
from transload.safetensors_file import read_tensors
from transload.sampling import Sampler


class Runner:
    """One sequence over the graphs of a bundle. Sessions open at first use. Not thread-safe.

    Without `context` it starts at the smallest context of the bundle and moves to a larger one when tokens need it.
    """

    def __init__(self, bundle, context: Optional[int] = None, threads: Optional[int] = None):
        self.bundle = Path(bundle)
        self.contract = Contract.load(self.bundle)
        self._contexts = self.contract.contexts()
        if context is not None:
            if context not in self._contexts:
                raise UsageError(f"no graph for this context: got {context}, expected one of {_list(self._contexts)}")
            self._contexts = [context]
        self._threads = threads
        self._sessions: Dict[str, onnxruntime.InferenceSession] = {}
        self._embedding = None
        if self.contract.input_form == "rows":
            self._embedding = Embedding(self.bundle, self.contract.embedding, self.contract.compute)
        self.cache = KvCache(self.contract, self._inv_freq(), self._contexts[0])

    @property
    def position(self) -> int:
        return self.cache.position

    def room(self) -> int:
        """Tokens that can still be read, over all contexts this runner may use."""
        return KvCache.capacity_of(self.contract, self._contexts[-1]) - self.position

    def reset(self) -> None:
        self.cache.clear()

    def reserve(self, count: int) -> None:
        """Moves to the smallest context that holds `count` more tokens."""
        if self.position + count <= self.cache.capacity:
            return
        for context in self._contexts:
            if context > self.cache.context and self.position + count <= KvCache.capacity_of(self.contract, context):
                self.cache.grow(context)
                self._sessions.clear()  # graphs of the smaller context are not needed again
                return
        raise UsageError(f"tokens do not fit: got {self.position + count}, expected at most {self.position + self.room()}")

    def plan(self, count: int, all_rows: bool = False) -> List[Tuple[int, int]]:
        """Calls that read `count` tokens, as (q, real tokens): the largest q while full, then the least that holds the rest."""
        queries = self.contract.queries(self.cache.context)
        if not (self.contract.logits == "last" and self.contract.head):
            return self._fill(count, queries)
        # Only the last row of a call comes out, so a row that is wanted must be the last of a full call.
        if all_rows:
            if queries[0] != 1:
                raise UsageError(
                    f"logits of the last row only: got all rows asked for, expected a graph of q 1, not {queries[0]}")
            return [(1, 1)] * count
        if count < queries[0]:
            raise UsageError(f"logits of the last row only: got {count} tokens, expected at least {queries[0]}")
        final = max(q for q in queries if q <= count)
        return self._fill(count - final, queries) + [(final, final)]

    @staticmethod
    def _fill(count: int, queries: Sequence[int]) -> List[Tuple[int, int]]:
        largest = queries[-1]
        rest = count % largest
        return [(largest, largest)] * (count // largest) + ([(next(q for q in queries if q >= rest), rest)] if rest else [])

    def feed(self, inputs, queries: Optional[Iterable[int]] = None, all_rows: bool = False) -> np.ndarray:
        """Reads tokens and returns the last row of the result, or all of them [n, ..].

        `inputs`: ids, or rows [n, H] where the bundle takes hidden states. `queries`: query length of each call, in order; a call
        takes as many tokens as are left and fit. A refused call leaves the cache as the call before left it.
        """
        rows = self._rows(inputs)
        count = len(rows)
        self.reserve(count)
        calls = self.plan(count, all_rows) if queries is None else [(q, q) for q in queries]
        if sum(real for _, real in calls) < count:
            raise UsageError(f"query lengths do not cover the tokens: got {sum(q for q, _ in calls)}, expected {count}")
        results = []
        done = 0
        for q, real in calls:
            real = min(real, count - done)
            if real == 0:
                break
            wanted = all_rows or done + real == count
            result = self._call(self.contract.step(q, self.cache.context), rows[done:done + real], wanted)
            if wanted:
                results.append(result if all_rows else result[-1:])
            done += real
        return np.concatenate(results) if all_rows else results[-1][0]

    def prepare(self, prompt_ids: Sequence[int], max_new_tokens: int) -> None:
        """Checks that `generate` can do it, chooses the context and opens its graphs, so that nothing loads while it runs."""
        if not self.contract.head or self.contract.input_form == "hidden":
            raise UsageError(f"bundle cannot generate: got layers {self.contract.first_layer} to {self.contract.end_layer - 1} "
                             f"{'with' if self.contract.head else 'without'} a head, expected the whole model")
        if len(prompt_ids) == 0:
            raise UsageError("prompt is empty: got 0 tokens, expected at least 1")
        check_tokens(prompt_ids, self.contract.vocab_size)
        wanted = len(prompt_ids) + max(0, max_new_tokens - 1)
        self.reserve(min(wanted, max(self.room(), len(prompt_ids))))
        for q in sorted({q for q, _ in self.plan(len(prompt_ids)) + self.plan(1)}):
            self._session(self.contract.step(q, self.cache.context))

    def generate(self,
                 prompt_ids: Sequence[int],
                 max_new_tokens: int,
                 stop: Iterable[int] = (),
                 sampler: Optional[Sampler] = None) -> Iterator[int]:
        """Yields tokens after the prompt; ends after a stop token (yielded), `max_new_tokens`, or when the context is full.

        The prompt continues what was read before; `reset` starts anew. The last token yielded has not been read yet.
        """
        self.prepare(prompt_ids, max_new_tokens)
        sampler = sampler or Sampler()
        stop = frozenset(stop)
        tokens = list(prompt_ids)
        for index in range(max_new_tokens):
            if index > 0 and self.room() == 0:
                return
            token = sampler.choose(self.feed(tokens))
            yield token
            if token in stop:
                return
            tokens = [token]

    def step_inputs(self, inputs) -> Tuple[Step, Dict[str, np.ndarray]]:
        """The next call for these tokens: its graph and its inputs in graph order. Nothing runs, nothing is stored."""
        rows = self._rows(inputs)
        self.reserve(len(rows))
        q, real = self.plan(len(rows))[0]
        step = self.contract.step(q, self.cache.context)
        return step, self._feed_dict(step, rows[:real])

    def dump_inputs(self, directory, inputs) -> List[str]:
        """Writes the inputs of the next call as <name>.npy and <name>.raw, and input_names.txt in graph order."""
        step, values = self.step_inputs(inputs)
        directory = Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        names = [port.name for port in step.inputs]
        for name in names:
            np.save(directory / f"{name}.npy", values[name])
            (directory / f"{name}.raw").write_bytes(values[name].tobytes())
        (directory / "input_names.txt").write_text("".join(name + "\n" for name in names), encoding="utf-8")
        return names

    def _call(self, step: Step, rows: np.ndarray, wanted: bool) -> np.ndarray:
        """One run and its commit; returns the result rows of the real tokens."""
        real, position = len(rows), self.position
        feeds = self._feed_dict(step, rows)
        session = self._session(step)
        values = session.run(None, feeds)
        caches = [value for port, value in zip(step.outputs, values) if port.role in ("k_new", "v_new")]
        result = next(value for port, value in zip(step.outputs, values) if port is step.result)
        if result.dtype != step.result.dtype or result.shape != step.result.shape:
            raise CacheError(f"tensor '{step.result.name}': got {result.dtype} {shape_text(result.shape)}, "
                             f"expected {step.result.dtype.name} {shape_text(step.result.shape)}")
        result = result.reshape(-1, result.shape[-1])
        if len(result) == step.q:
            result = result[:real]
        elif wanted and real < step.q:
            raise UsageError(f"logits of the last row only: got {real} tokens in a call of {step.q}, expected a full call")
        if not np.isfinite(result).all():
            raise CacheError(
                f"tensor '{step.result.name}': values are not finite: got {np.count_nonzero(~np.isfinite(result))} of "
                f"{result.size}, expected 0")
        self.cache.commit(step, caches, position, real)
        return result

    def _feed_dict(self, step: Step, rows: np.ndarray) -> Dict[str, np.ndarray]:
        port = step.token_input
        padded = np.zeros((step.q, ) + rows.shape[1:], port.dtype)
        padded[:len(rows)] = rows
        values = self.cache.inputs(step, self.position, len(rows))
        values[port.name] = padded[None]
        return {p.name: values[p.name] for p in step.inputs}

    def _rows(self, inputs) -> np.ndarray:
        contract = self.contract
        if contract.input_form == "hidden":
            rows = np.asarray(inputs)
            if rows.ndim != 2 or rows.shape[1] != contract.hidden_size or not np.issubdtype(rows.dtype, np.floating):
                raise UsageError(f"bundle takes hidden states: got {rows.dtype} {shape_text(rows.shape)}, "
                                 f"expected rows of {contract.hidden_size} floats")
            rows = rows.astype(contract.compute)
        elif contract.input_form == "ids":
            rows = check_tokens(inputs, contract.vocab_size)
        else:
            rows = self._embedding.rows(inputs)
        if len(rows) == 0:
            raise UsageError("nothing to read: got 0 tokens, expected at least 1")
        return rows

    def _inv_freq(self) -> Dict[str, np.ndarray]:
        if not self.contract.rope:
            return {}
        path = self.bundle / "host.safetensors"
        tables = read_tensors(path)
        missing = [group.inv_freq for group in self.contract.rope.values() if group.inv_freq not in tables]
        if missing:
            raise ContractError(
                f"{path}: tensor '{missing[0]}': missing: got {len(tables)} other tensors, expected rope frequencies")
        return {name: tables[group.inv_freq] for name, group in self.contract.rope.items()}

    def _session(self, step: Step) -> onnxruntime.InferenceSession:
        session = self._sessions.get(step.file)
        if session is None:
            options = onnxruntime.SessionOptions()
            options.log_severity_level = 3
            options.inter_op_num_threads = 1
            if self._threads:
                options.intra_op_num_threads = self._threads
            path = self.bundle / step.file
            try:
                session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
            except Exception as error:  # onnxruntime has no common base class of its errors
                raise ContractError(
                    f"{path}: graph does not load: got {str(error).splitlines()[0]}, expected a valid graph") from None
            for kind, have, ports in (("input", session.get_inputs(), step.inputs), ("output", session.get_outputs(),
                                                                                     step.outputs)):
                if [value.name for value in have] != [port.name for port in ports]:
                    raise ContractError(f"{path}: {kind} names do not match contract.json: got {_list(v.name for v in have)}, "
                                        f"expected {_list(p.name for p in ports)}")
            self._sessions[step.file] = session
        return session


def _list(values) -> str:
    return ", ".join(str(value) for value in values)
