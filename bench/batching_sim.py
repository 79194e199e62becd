#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Would a batcher that knows experts read less? Simulates decoding of several sequences with a part of the experts in memory
(LRU per layer) and counts reads per generated token, for three batchers:
  all     every sequence in every step
  turns   a part of the sequences in each step, those that waited longest
  aware   as many, those whose previous token's experts are in memory most; nobody is passed over more than --delay times
           while places last
and `oracle`, which is aware with the experts that the tokens will really choose, so that it bounds what a hint can give.
Routing: each sequence takes up experts of its own latest tokens again (`reuse`: the share taken from the latest token, then from
the seven before), the rest by a popularity that all share (Zipf). Standard library only."""
import argparse
import random


class Sequence:
    def __init__(self, rng, a):
        self.rng, self.a, self.past, self.waited = rng, a, [[] for _ in range(a.layers)], 0
        self.chosen = self.choose()

    def choose(self):
        """Experts of the next token, per layer."""
        a, rng, out = self.a, self.rng, []
        for past in self.past:
            ids = set()
            while len(ids) < a.used:
                x = rng.random()
                if past and x < a.reuse:
                    ids.add(rng.choice(past[-1]))
                elif past and x < a.reuse + a.reuse_older:
                    ids.add(rng.choice(rng.choice(past)))
                else:
                    ids.add(rng.choices(a.ids, cum_weights=a.cumulated)[0])
            out.append(sorted(ids))
        return out

    def advance(self):
        for past, ids in zip(self.past, self.chosen):
            past.append(ids)
            del past[:-8]
        self.chosen, self.waited = self.choose(), 0


def misses_of(experts, memory):
    return sum(e not in m for ids, m in zip(experts, memory) for e in ids)


def pick(kind, sequences, memory, a):
    if kind == "all":
        return list(sequences)
    overdue = sorted((s for s in sequences if s.waited >= a.delay), key=lambda s: -s.waited) if kind != "turns" else []
    if kind == "turns":
        rest = sorted(sequences, key=lambda s: -s.waited)
    else:
        def hint(s):
            return s.chosen if kind == "oracle" or not s.past[0] else [p[-1] for p in s.past]
        rest = sorted((s for s in sequences if s not in overdue), key=lambda s: misses_of(hint(s), memory))
    return (overdue + rest)[:max(1, round(len(sequences) * a.part))]


def simulate(kind, a):
    sequences = [Sequence(random.Random(a.seed * 1000 + i), a) for i in range(a.sequences)]
    memory = [{} for _ in range(a.layers)]  # dicts keep order: the first is the least recently used
    slots, reads, tokens, hits, longest = int(a.experts * a.memory), 0, 0, 0, 0
    while tokens < a.tokens * a.sequences:
        batch = pick(kind, sequences, memory, a)
        for layer, m in enumerate(memory):
            wanted = {e for s in batch for e in s.chosen[layer]}
            for e in sorted(wanted, key=lambda e: e not in m):  # what is there first, as the store does
                if tokens > a.sequences * a.tokens // 4:
                    hits += e in m
                    reads += e not in m
                m.pop(e, None)
                m[e] = True
                if len(m) > slots:
                    del m[next(iter(m))]
        for s in sequences:
            s.waited += 1
        longest = max(longest, *(s.waited for s in sequences))
        for s in batch:
            s.advance()
        tokens += len(batch)
    counted = tokens - a.sequences * a.tokens // 4
    return reads / counted / a.layers, hits / (hits + reads), longest


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    for name, kind, value in (("layers", int, 4), ("experts", int, 128), ("used", int, 8), ("memory", float, 0.25), ("tokens", int, 100), ("seed", int, 1),
                              ("delay", int, 4), ("reuse", float, 0.35), ("reuse-older", float, 0.3), ("zipf", float, 0.6)):
        p.add_argument(f"--{name}", type=kind, default=value)
    a = p.parse_args()
    a.ids, total, a.cumulated = list(range(a.experts)), 0, []
    for i in range(a.experts):
        total += 1 / (i + 1) ** a.zipf
        a.cumulated.append(total)
    print("| sequences | part in a step | batcher | reads per token and layer | against all | hits | longest wait, steps |\n|---|---|---|---|---|---|---|")
    for a.sequences in (8, 16):
        a.part = 1
        base, share, longest = simulate("all", a)
        print(f"| {a.sequences} | all | all | {base:.2f} | 1 | {100 * share:.0f} % | {longest} |")
        for a.part in (0.75, 0.5, 0.25):
            for kind in ("turns", "aware", "oracle"):
                reads, share, longest = simulate(kind, a)
                print(f"| {a.sequences} | {a.part:.0%} | {kind} | {reads:.2f} | {reads / base:.2f} | {100 * share:.0f} % | {longest} |", flush=True)


if __name__ == "__main__":
    main()
