#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the best policy without knowledge of the future could reach on a routing trace: a bound for `moed simulate`, beside Belady's.

  bench/cache_bound.py TRACE [--budget 25]

Both bounds let an expert pass through without being kept, cost nothing to compute, keep the budget on the mean only, and are told by
the trace itself, afterwards, everything a policy would have to learn. They differ in what a policy looks at:
  age      each expert is kept for its own best time since its last use. Every policy that goes by which expert it is and when it
           was used last (LRU, LFU, LFRU, pinning, per-layer budgets, admission) does no better, but for chance.
  markov   each layer chooses one of a few sets of experts, with known probabilities that depend on its set of the token before; a set is
           kept as long as that pays. Only for traces where layers choose among at most --sets sets.
How: a price per slot and step makes the experts independent of each other (Lagrange); the lowest sum over all prices is the bound. The
first quarter of the steps is not counted, as in `moed simulate`; what is kept from there, and after a last use, costs nothing. Standard
library only."""
import argparse
import bisect
import itertools
import struct


class Trace:
    """Decode steps of a file as offload/trace.h describes it: steps[t] = [(layer, experts)]."""

    def __init__(self, data):
        assert data[:8] == b"MOEDTRC1", "not a routing trace"
        self.data = data
        n_layers, self.n_experts, self.k = struct.unpack_from("<III", data, 8)
        at = 36 + 4 + struct.unpack_from("<I", data, 36)[0]
        routed = data[at:at + (n_layers + 7) // 8]
        self.n_routed = sum(routed[i // 8] >> i % 8 & 1 for i in range(n_layers))
        self.at, self.steps = at + len(routed), []
        while self.at < len(data) and self.record():
            pass

    def leb(self):
        v = shift = 0
        while True:
            b = self.data[self.at]
            self.at += 1
            v |= (b & 127) << shift
            shift += 7
            if b < 128:
                return v

    def record(self):
        kind = self.leb()
        if kind == 1:
            self.layers = []
            if not self.leb():
                self.steps.append(self.layers)
            self.leb()
        elif kind == 2:
            layer, n = self.leb(), self.leb() * self.k
            wide = self.n_experts > 256
            ids = struct.unpack_from(f"<{n}{'H' if wide else 'B'}", self.data, self.at)
            self.at += n << wide
            self.layers.append((layer, frozenset(ids)))
        elif kind == 3:
            layer, _, n, expert, ids = self.leb(), self.leb(), self.leb(), -1, []
            for _ in range(n):
                expert += self.leb()
                self.leb()
                ids.append(expert)
            self.layers.append((layer, frozenset(ids)))
        return kind != 4


def lowest(f):
    """The minimum of a convex function of the price."""
    a, b = 0.0, 1.0
    for _ in range(40):
        x, y = a + (b - a) / 3, b - (b - a) / 3
        a, b = (a, y) if f(x) < f(y) else (x, b)
    return min(f(a), f(0.0))


def age_bound(steps, slots):
    """Hits per wanted expert."""
    warm, last, gaps, wanted = len(steps) // 4, {}, {}, 0
    for t, layers in enumerate(steps):
        for layer, experts in layers:
            for key in ((layer, e) for e in experts):
                wanted += t >= warm
                if t >= warm and key in last:
                    gaps.setdefault(key, []).append((t - last[key], last[key] >= warm))
                last[key] = t
    choices = []  # per expert: (hits, slot steps) of keeping it for each of the ages at which it came back
    for of_key in gaps.values():
        of_key.sort()
        paid = [g for g, whole in of_key if whole]
        sums = [0, *itertools.accumulate(paid)]
        n_paid = [bisect.bisect_right(paid, g) for g, _ in of_key]
        choices.append([(i + 1, sums[p] + (len(paid) - p) * g) for i, ((g, _), p) in enumerate(zip(of_key, n_paid))
                        if i + 1 == len(of_key) or of_key[i + 1][0] > g])
    n = slots * (len(steps) - warm)
    return lowest(lambda price: price * n + sum(max(0, *(h - price * s for h, s in c)) for c in choices)) / wanted


def keep_value(p, own, price):
    """Hits less price, per step, of the best way to keep set `own` of a layer with transitions p: relative value iteration. A set in
    memory may stay, at the price; one that was chosen is in memory."""
    n = range(len(p))
    held, gone, gain = [0.0] * len(p), [0.0] * len(p), 0.0
    for _ in range(100):
        drop = [sum(p[c][d] * (held[d] if d == own else gone[d]) for d in n) for c in n]
        keep = [max(drop[c], p[c][own] - price + sum(p[c][d] * held[d] for d in n)) for c in n]
        gain = drop[own == 0] if len(p) > 1 else keep[0]
        held, gone = [x - gain for x in keep], [x - gain for x in drop]
    return gain


def markov_bound(steps, share, most):
    """As age_bound, or None where a layer has more than `most` sets."""
    warm, before, counts = len(steps) // 4, {}, {}
    for t, layers in enumerate(steps):
        for layer, chosen in layers:
            c = counts.setdefault(layer, {})
            if t > warm:
                c.setdefault(before[layer], {})
                c[before[layer]][chosen] = c[before[layer]].get(chosen, 0) + 1
            before[layer] = chosen
    sources = []
    for c in counts.values():
        sets = sorted(set(c) | {s for row in c.values() for s in row}, key=sorted)
        if len(sets) > most:
            return None
        size = sum(map(len, sets)) / len(sets)
        rows = [[c.get(a, {}).get(b, 0) for b in sets] for a in sets]
        p = [[x / sum(row) if sum(row) else 1 / len(sets) for x in row] for row in rows]
        sources.append((size, p))
    wanted = sum(size for size, _ in sources)

    def total(price):
        return price * share + sum(size * keep_value(p, i, price) for size, p in sources for i in range(len(p)))
    return lowest(total) / wanted


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("trace")
    p.add_argument("--budget", default="25", help="percent of all experts, comma-separated [25]")
    p.add_argument("--sets", type=int, default=6, help="markov: most sets of a layer [6]")
    a = p.parse_args()
    with open(a.trace, "rb") as f:
        t = Trace(f.read())
    for percent in map(float, a.budget.split(",")):
        slots = int(t.n_routed * t.n_experts * percent / 100 + 1e-6)
        markov = markov_bound(t.steps, slots, a.sets)
        print(f"{percent:g} %: age {100 * age_bound(t.steps, slots):.1f} %, markov {'-' if markov is None else f'{100 * markov:.1f} %'}", flush=True)


if __name__ == "__main__":
    main()
