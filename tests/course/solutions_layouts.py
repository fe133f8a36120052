"""Answers to notebook 08: right ones, and wrong ones with the hint they get."""

import numpy as np

# --- beat_bubble ---


def beat_bubble(batch, dp, pp, micro_batch):
    m = batch // (dp * micro_batch)
    return m, (pp - 1) / (m + pp - 1)


def bubble_of_all_replicas(batch, dp, pp, micro_batch):
    m = batch / micro_batch
    return m, (pp - 1) / (m + pp - 1)


def bubble_over_busy(batch, dp, pp, micro_batch):
    m = batch / dp / micro_batch
    return m, (pp - 1) / m


def bubble_of_pp_stages(batch, dp, pp, micro_batch):
    m = batch / dp / micro_batch
    return m, pp / (m + pp)


def bubble_by_sequences(batch, dp, pp, micro_batch):
    return batch / dp, (pp - 1) / (batch / dp + pp - 1)


def bubble_in_percent(batch, dp, pp, micro_batch):
    m, share = beat_bubble(batch, dp, pp, micro_batch)
    return m, 100 * share


# --- beat_fits ---


def beat_fits(parameters, tp, pp, dp, zero, sequence, memory):
    own = parameters / tp / pp
    states = 6 * own + 12 * own / (dp if zero == 1 else 1)
    return states, max(0, int((memory - states) / pp / sequence))


def fits_unsplit(parameters, tp, pp, dp, zero, sequence, memory):
    return parameters * (6 + 12 / (dp if zero else 1)), 1


def fits_without_zero(parameters, tp, pp, dp, zero, sequence, memory):
    return beat_fits(parameters, tp, pp, dp, 0, sequence, memory)


def fits_always_zero(parameters, tp, pp, dp, zero, sequence, memory):
    return beat_fits(parameters, tp, pp, dp, 1, sequence, memory)


def fits_all_sharded(parameters, tp, pp, dp, zero, sequence, memory):
    states = 18 * parameters / tp / pp / (dp if zero else 1)
    return states, max(0, (memory - states) // (pp * sequence))


def fits_half_gradients(parameters, tp, pp, dp, zero, sequence, memory):
    return parameters / tp / pp * (4 + 12 / (dp if zero else 1)), 1


def fits_one_in_flight(parameters, tp, pp, dp, zero, sequence, memory):
    states, _ = beat_fits(parameters, tp, pp, dp, zero, sequence, memory)
    return states, max(0, (memory - states) // sequence)


def fits_not_whole(parameters, tp, pp, dp, zero, sequence, memory):
    states, _ = beat_fits(parameters, tp, pp, dp, zero, sequence, memory)
    return states, max(0, (memory - states) / sequence / pp)


def fits_negative(parameters, tp, pp, dp, zero, sequence, memory):
    states, _ = beat_fits(parameters, tp, pp, dp, zero, sequence, memory)
    return states, (memory - states) // (pp * sequence)


def fits_at_least_one(*asked):
    states, most = beat_fits(*asked)
    return states, max(1, most)


def fits_one_more(parameters, tp, pp, dp, zero, sequence, memory):
    states, most = beat_fits(parameters, tp, pp, dp, zero, sequence, memory)
    return states, most + 1


# --- beat_between ---


def beat_between(layers, hidden, tokens, microbatches, inside, between):
    a = 2 * tokens * hidden
    sent = {"tp": 2 * layers * microbatches * a, "pp": microbatches * a}
    sent["dp"] = 12 * layers * hidden**2
    return min(sent, key=sent.get)


def between_always_dp(layers, hidden, tokens, microbatches, inside, between):
    return "dp"


def between_always_pp(layers, hidden, tokens, microbatches, inside, between):
    return "pp"


def between_most(layers, hidden, tokens, microbatches, inside, between):
    return "tp"


def between_number(layers, hidden, tokens, microbatches, inside, between):
    return 2


# --- beat_regret ---


def beat_regret(predicted, measured):
    times = sorted(zip(predicted, measured))
    best = min(measured)
    return times[0][1] / best - 1, float(np.mean(measured)) / best - 1


def regret_of_predictions(predicted, measured):
    return min(predicted) / min(measured) - 1, 0.0


def regret_as_ratio(predicted, measured):
    mine, chance = beat_regret(predicted, measured)
    return 1 + mine, 1 + chance


def regret_of_the_best(predicted, measured):
    return 0.0, beat_regret(predicted, measured)[1]


def regret_over_the_pick(predicted, measured):
    return tuple(1 - 1 / (1 + r) for r in beat_regret(predicted, measured))


def regret_of_the_median(predicted, measured):
    return beat_regret(predicted, measured)[0], float(np.median(measured)) / min(measured) - 1


def regret_of_the_worst_pick(predicted, measured):
    worst = measured[predicted.index(max(predicted))]
    return worst / min(measured) - 1, beat_regret(predicted, measured)[1]


# --- beat_rank ---


def beat_rank(predicted, measured):
    a, b = (np.argsort(np.argsort(times)) for times in (predicted, measured))
    return float(np.corrcoef(a, b)[0, 1])


def rank_of_seconds(predicted, measured):
    return float(np.corrcoef(predicted, measured)[0, 1])


def rank_of_pairs(predicted, measured):
    n, agree = len(predicted), 0
    for i in range(n):
        for j in range(i):
            agree += np.sign((predicted[i] - predicted[j]) * (measured[i] - measured[j]))
    return float(agree) / (n * (n - 1) / 2)


def rank_reversed(predicted, measured):
    return -beat_rank(predicted, measured)


def rank_by_order(predicted, measured):
    """argsort alone gives which layout has a rank, not its rank."""
    return float(np.corrcoef(np.argsort(predicted), np.argsort(measured))[0, 1])


# --- beat_rule ---


def beat_rule(layouts, batch, node):
    return max(layouts, key=lambda layout: (layout[2], layout[3]))


def rule_least_split(layouts, batch, node):
    return min(layouts, key=lambda layout: (layout[0] * layout[1], -layout[3]))


def rule_most_tp(layouts, batch, node):
    return max(layouts)


def rule_most_stages(layouts, batch, node):
    return max(layouts, key=lambda layout: layout[1])


def rule_largest_micro_batch(layouts, batch, node):
    return max(layouts, key=lambda layout: layout[3])


def rule_an_index(layouts, batch, node):
    return 0


RIGHT = {
    "beat_bubble": [beat_bubble],
    "beat_fits": [beat_fits],
    "beat_between": [beat_between],
    "beat_regret": [beat_regret],
    "beat_rank": [beat_rank],
    "beat_rule": [beat_rule, rule_least_split],
}

WRONG = {
    "beat_bubble": [
        (bubble_of_all_replicas, "the replicas share the batch"),
        (bubble_over_busy, "that is the bubble over the busy time"),
        (bubble_of_pp_stages, "pp - 1 stages before the last one, not pp"),
        (bubble_by_sequences, "microbatches are counted, not their sequences"),
        (bubble_in_percent, "the bubble should be .* that is in per cent"),
    ],
    "beat_fits": [
        (fits_unsplit, "tp and pp split the parameters"),
        (fits_without_zero, "shards the 12 bytes of the optimizer's state over dp"),
        (fits_always_zero, "without ZeRO every replica has the whole"),
        (fits_all_sharded, "shards the 12 bytes of the optimizer's state alone"),
        (fits_half_gradients, "a parameter has 2 bytes, its gradient 4"),
        (fits_one_in_flight, "the first stage of 1F1B holds pp="),
        (fits_not_whole, "a whole number of sequences"),
        (fits_one_more, "the micro batch is rounded down"),
        (fits_negative, "nothing fits, so the micro batch is 0, not negative"),
        (fits_at_least_one, "nothing fits, not one sequence"),
    ],
    "beat_between": [
        (between_always_dp, "'dp' takes .* of communication, .* A GPU sends in a step: tp"),
        (between_always_pp, "'pp' takes .* of communication"),
        (between_most, "'tp' takes .* of communication"),
        (between_number, "which is not an axis"),
    ],
    "beat_regret": [
        (regret_of_predictions, "compare a predicted time with a measured one"),
        (regret_as_ratio, "that is the ratio of the steps"),
        (regret_of_the_best, "the search does not know what was measured"),
        (regret_over_the_pick, "relative to the fastest measured layout, not to the pick"),
        (regret_of_the_median, "the mean of all measured steps, not their median"),
        (regret_of_the_worst_pick, "you took the layout predicted slowest"),
    ],
    "beat_rank": [
        (rank_of_seconds, "that is Pearson's correlation"),
        (rank_of_pairs, "that is Kendall's tau"),
        (rank_reversed, "the sign is wrong"),
        (rank_by_order, "argsort once more"),
    ],
    "beat_rule": [
        (rule_most_tp, "every layer waits for slow links|all-reduces over tp"),
        (rule_most_stages, "a pipeline of|Its pipeline of|waits for slow links"),
        (
            rule_largest_micro_batch,
            "your rule picked .* took .* more than the fastest.* The baseline, .* picks .* regret",
        ),
        (rule_an_index, "returned 0, which is none of the layouts"),
    ],
}
