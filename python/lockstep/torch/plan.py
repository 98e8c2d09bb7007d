"""The order in which the blocks of a model are gathered in a turn ("zero3", "hybrid").

Every rank gathers the same blocks in the same order, whatever its micro-batch is: each block in the
forward pass, and again in the backward pass.  So the order is planned before the first step, from
the events of one turn (uses.Events), or without one.

Blocks are numbered in the order of the backward pass, in which the gradients of a block are
complete before the next block is gathered.  A parameter that the backward pass needs much earlier
than its gradient is complete (a head that is the embedding, too) would make everything between
them one block.  Such parameters are kept in memory from the forward pass on.
"""

import dataclasses

_KEPT_MAX = 64   # parameters that may be kept for the sake of smaller blocks


@dataclasses.dataclass
class Plan:
    """blocks: the parameters of each block, in the order of their gradients.
    forward: the blocks in the order of the forward pass.
    again: whether the backward pass gathers the blocks again; otherwise all parameters are kept.
    kept: the parameters that stay in memory until their gradient is complete.
    released: of each place in `forward`, the parameters that are not used in the rest of the
        forward pass once the block at that place is.
    """

    blocks: list
    forward: list
    again: bool
    kept: list
    released: list


def keep_all(count):
    """Return the plan for a model of which only the number of parameters is known."""
    backward = [[p] for p in reversed(range(count))]
    return Plan(backward, list(reversed(range(count))), False, list(range(count)), [[]] * count)


def make(names, sizes, events):
    """Return the plan for a model whose turns have the given events.

    names, sizes: of the parameters, in the order of the model.
    """
    last = {}    # of each parameter, the position of its last completed gradient
    for position, (kind, what) in enumerate(events.backward):
        if kind == "gradient":
            last[what] = position
    order = _place_unused(len(names), sorted(last, key=last.get))
    wanted = _first_wanted(events.backward, last)
    blocks, kept = _choose_kept(names, sizes, order, last, wanted)
    first, final = _forward_uses(events.forward)
    forward = _forward_order(blocks, first)
    return Plan(blocks, forward, True, sorted(kept),
                _released(blocks, forward, kept, first, final))


def _place_unused(count, order):
    """Insert the parameters without a gradient before the parameter that precedes them in the
    model, as if they were used right after it."""
    known = set(order)
    for p in range(count):
        if p not in known:
            order.insert(order.index(p - 1) if p > 0 else len(order), p)
    return order


def _first_wanted(backward, last):
    """Return, of each parameter that the backward pass uses, how many gradients were complete
    before."""
    wanted, complete = {}, 0
    for position, (kind, what) in enumerate(backward):
        if kind == "gradient":
            complete += last[what] == position
        else:
            for p in what:
                wanted.setdefault(p, complete)
    return wanted


def _cut(names, order, last, wanted, kept):
    """Return the smallest blocks of which each can be gathered after the gradients of all blocks
    before it."""
    complete, before = [], 0   # number of gradients that are complete before each position
    for p in order:
        complete.append(before)
        before += p in last
    needs = [before if p in kept or p not in last else wanted.get(p, before) for p in order]
    for i in reversed(range(len(needs) - 1)):
        needs[i] = min(needs[i], needs[i + 1])
    blocks = []
    for i, p in enumerate(order):
        unused = i > 0 and p not in last and order[i - 1] not in last
        together = unused and _owner(names[p]) == _owner(names[order[i - 1]])
        if blocks and (needs[i] < complete[i] or together):
            blocks[-1].append(p)
        else:
            blocks.append([p])
    return blocks


def _owner(name):
    return name.rpartition(".")[0]


def _choose_kept(names, sizes, order, last, wanted):
    """Return the blocks, and the parameters to keep, that need the least memory."""
    done = sorted(last, key=last.get)
    spans = {}
    for position, p in enumerate(done):
        inside = done[wanted.get(p, position):position]
        if inside:
            spans[p] = sum(sizes[q] for q in inside)
    longest = sorted(spans, key=spans.get, reverse=True)[:_KEPT_MAX]
    best = None
    for count in range(len(longest) + 1):
        kept = set(longest[:count])
        blocks = _cut(names, order, last, wanted, kept)
        memory = sum(sizes[p] for p in kept) + 2 * max(
            sum(sizes[p] for p in block if p not in kept) for block in blocks)
        if best is None or memory < best[0]:
            best = memory, blocks, kept
    return best[1:]


def _forward_uses(events):
    """Return the positions of the first and the last use of each parameter."""
    first, final = {}, {}
    for position, (_, params) in enumerate(events):
        for p in params:
            first.setdefault(p, position)
            final[p] = position
    return first, final


def _forward_order(blocks, first):
    keys, key = {}, -1
    for b in reversed(range(len(blocks))):
        key = min((first[p] for p in blocks[b] if p in first), default=key)
        keys[b] = key
    return sorted(reversed(range(len(blocks))), key=keys.get)


def _released(blocks, forward, kept, first, final):
    """See ``Plan.released``."""
    begins = [min((first[p] for p in blocks[b] if p in first), default=None) for b in forward]
    released = [[] for _ in forward]
    for b in forward:
        for p in blocks[b]:
            later = (i for i, begin in enumerate(begins)
                     if begin is not None and p in final and begin > final[p])
            place = next(later, None)
            if place is not None and p not in kept:
                released[place].append(p)
    return released
