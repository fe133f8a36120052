"""Answers to the exercises on data parallelism: right ones, and wrong ones with the hint they
get."""

import torch
import torch.distributed as dist

# --- zero_bucket ---


def zero_bucket(*gradients):
    bucket = torch.cat([gradient.flatten() for gradient in gradients])
    dist.all_reduce(bucket)
    return bucket / dist.get_world_size()


def bucket_divided_first(*gradients):
    bucket = torch.cat([g.reshape(-1) / dist.get_world_size() for g in gradients])
    dist.all_reduce(bucket, async_op=True).wait()
    return bucket


def bucket_filled_in_place(*gradients):
    bucket, at = gradients[0].new_empty(sum(g.numel() for g in gradients)), 0
    for gradient in gradients:
        bucket[at : at + gradient.numel()] = gradient.view(-1)
        at += gradient.numel()
    dist.all_reduce(bucket)
    return bucket.div_(dist.get_world_size())


def bucket_alone(*gradients):
    return torch.cat([gradient.flatten() for gradient in gradients])


def bucket_of_sums(*gradients):
    return zero_bucket(*gradients) * dist.get_world_size()


def bucket_for_each(*gradients):
    for gradient in gradients:
        dist.all_reduce(gradient)
    return bucket_alone(*gradients) / dist.get_world_size()


def bucket_gathered(*gradients):
    bucket = bucket_alone(*gradients)
    found = [torch.empty_like(bucket) for _ in range(dist.get_world_size())]
    dist.all_gather(found, bucket)
    return sum(found) / len(found)


def bucket_reversed(*gradients):
    return zero_bucket(*gradients[::-1])


# --- zero_step ---


def reduced(gradient):
    """This rank's shard of the sum."""
    mine = torch.empty_like(gradient.chunk(dist.get_world_size())[0])
    dist.reduce_scatter_tensor(mine, gradient.contiguous())
    return mine


def joined(shard):
    """All ranks' shards."""
    whole = shard.new_empty(len(shard) * dist.get_world_size())
    dist.all_gather_into_tensor(whole, shard.contiguous())
    return whole


def own(whole):
    return whole.chunk(dist.get_world_size())[dist.get_rank()]


def zero_step(weights, gradient, momentum):
    n, rank = dist.get_world_size(), dist.get_rank()
    shard = torch.empty_like(momentum)
    dist.reduce_scatter_tensor(shard, gradient)
    momentum = momentum / 2 + shard / n
    new = torch.empty_like(weights)
    dist.all_gather_into_tensor(new, weights.chunk(n)[rank] - momentum)
    return new


def step_of_lists(weights, gradient, momentum):
    n, rank = dist.get_world_size(), dist.get_rank()
    mine = torch.empty_like(gradient.chunk(n)[0])
    dist.reduce_scatter(mine, list(gradient.chunk(n)))
    shards = [torch.empty_like(mine) for _ in range(n)]
    dist.all_gather(shards, weights.chunk(n)[rank] - (momentum / 2 + mine / n))
    return torch.cat(shards)


def step_divided_first(weights, gradient, momentum):
    n, size = dist.get_world_size(), len(momentum)
    mine = gradient.new_empty(size)
    dist.reduce_scatter_tensor(mine, gradient / n)
    momentum.mul_(0.5).add_(mine)
    shard = weights[dist.get_rank() * size :][:size]
    new = torch.empty_like(weights)
    dist.all_gather_into_tensor(new, shard - momentum)
    return new


def step_of_the_update(weights, gradient, momentum):
    """Updates are gathered, not weights: as many bytes."""
    return weights - joined(momentum / 2 + reduced(gradient) / dist.get_world_size())


def step_alone(weights, gradient, momentum):
    return own(weights - gradient) - momentum / 2


def step_of_replicas(weights, gradient, momentum):
    dist.all_reduce(gradient)
    return weights - gradient / dist.get_world_size()


def step_of_replicas_in_halves(weights, gradient, momentum):
    """Plain data parallelism in other words: every rank updates all weights."""
    return weights - joined(reduced(gradient)) / dist.get_world_size()


def step_of_replicas_with_momentum(weights, gradient, momentum):
    n = dist.get_world_size()
    return weights - joined(momentum) / 2 - joined(reduced(gradient)) / n


def step_with_its_momentum_for_all(weights, gradient, momentum):
    n = dist.get_world_size()
    return weights - joined(reduced(gradient)) / n - momentum.repeat(n) / 2


def step_without_gathering(weights, gradient, momentum):
    return own(zero_step(weights, gradient, momentum))


def step_shard_alone(weights, gradient, momentum):
    return own(weights) - momentum / 2 - reduced(gradient) / dist.get_world_size()


def step_of_the_sum(weights, gradient, momentum):
    return zero_step(weights, gradient * dist.get_world_size(), momentum)


def step_keeps_all_momentum(weights, gradient, momentum):
    return zero_step(weights, gradient, 2 * momentum)


def step_of_old_weights(weights, gradient, momentum):
    reduced(gradient)
    return joined(own(weights))


def step_of_own_gradient(weights, gradient, momentum):
    return joined(own(weights - gradient) - momentum / 2)


def step_not_gathered(weights, gradient, momentum):
    own(weights).sub_(momentum / 2 + reduced(gradient) / dist.get_world_size())
    return weights


def step_gathered(weights, gradient, momentum):
    found = [torch.empty_like(gradient) for _ in range(dist.get_world_size())]
    dist.all_gather(found, gradient)
    shard = own(weights - sum(found) / len(found)) - momentum / 2
    return joined(shard)


# --- zero_states ---


def zero_states(parameters, dp, zero):
    kept = [2 * parameters, 2 * parameters, 12 * parameters]
    for stage in range(zero):
        kept[2 - stage] /= dp
    return kept


def states_by_product(parameters, dp, zero):
    return (
        2 * parameters * (1 / dp if zero == 3 else 1),
        2 * parameters * (1 / dp if zero >= 2 else 1),
        12 * parameters * (1 / dp if zero else 1),
    )


def states_unsharded(parameters, dp, zero):
    return zero_states(parameters, dp, 0)


def states_all_sharded(parameters, dp, zero):
    return zero_states(parameters, dp, 3)


def states_a_stage_early(parameters, dp, zero):
    return zero_states(parameters, dp, min(zero + 1, 3))


def states_parameters_first(parameters, dp, zero):
    shares = [dp if zero >= stage else 1 for stage in (1, 2, 3)]
    return tuple(n * parameters / share for n, share in zip((2, 2, 12), shares))


# --- zero_sent ---


def zero_sent(size, dp, zero):
    return (2 + zero // 3) * size * (1 - 1 / dp)


def sent_in_halves(size, dp, zero):
    half = size - size / dp
    return half + half + (half if zero > 2 else 0)


def sent_whole(size, dp, zero):
    return (3 if zero == 3 else 2) * size


def sent_once(size, dp, zero):
    return (dp - 1) / dp * size


def sent_without_gathering_again(size, dp, zero):
    return 2 * (dp - 1) / dp * size


def sent_always_thrice(size, dp, zero):
    return 3 * (dp - 1) / dp * size


def sent_more_in_each_stage(size, dp, zero):
    return (2 + zero) * (dp - 1) / dp * size


RIGHT = {
    "zero_bucket": [zero_bucket, bucket_divided_first, bucket_filled_in_place],
    "zero_step": [zero_step, step_of_lists, step_divided_first, step_of_the_update],
    "zero_states": [zero_states, states_by_product],
    "zero_sent": [zero_sent, sent_in_halves],
}
WRONG = {
    "zero_bucket": [
        (bucket_alone, "shows no collective"),
        (bucket_of_sums, "the sums over the ranks, not the means"),
        (bucket_for_each, "one collective for each parameter"),
        (bucket_gathered, "Use a collective that reduces"),
        (bucket_reversed, "another order"),
    ],
    "zero_step": [
        (step_alone, "the replicas are no longer equal"),
        (step_of_replicas, "you all-reduced the gradient"),
        (step_of_replicas_in_halves, "the momentum is left out"),
        (step_of_replicas_with_momentum, "every rank then has all momentum"),
        (step_with_its_momentum_for_all, "that of the rank's own shard alone"),
        (step_without_gathering, "returned only your own shard"),
        (step_shard_alone, "its own updated shard"),
        (step_of_the_sum, "subtracted the sum"),
        (step_keeps_all_momentum, "half of the old momentum, not all"),
        (step_of_old_weights, "you gathered the old weights"),
        (step_of_own_gradient, "with its rank's own gradient alone"),
        (step_not_gathered, "outside of the rank's own shard are the old ones"),
        (step_gathered, "gathered every rank's gradients"),
    ],
    "zero_states": [
        (states_unsharded, "this stage keeps shards|stage 1 shards optimizer states"),
        (states_all_sharded, "no stage shards all three|stage 1 begins to shard"),
        (states_a_stage_early, "stage 1 begins to shard"),
        (states_parameters_first, "in this order: optimizer states"),
    ],
    "zero_sent": [
        (sent_whole, "not all of it"),
        (sent_once, "two halves"),
        (sent_without_gathering_again, "stage 3 gathers the parameters twice"),
        (sent_always_thrice, "before stage 3 no rank gathers"),
        (sent_more_in_each_stage, "only parameters are gathered once more|before stage 3"),
    ],
}
