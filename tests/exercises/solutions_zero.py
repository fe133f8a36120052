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


def zero_step(weights, gradient):
    n, rank = dist.get_world_size(), dist.get_rank()
    shard = weights.chunk(n)[rank]
    mine = torch.empty_like(shard)
    dist.reduce_scatter_tensor(mine, gradient)
    shard = shard - mine / n
    dist.all_gather_into_tensor(weights, shard)
    return weights


def step_of_lists(weights, gradient):
    n, rank = dist.get_world_size(), dist.get_rank()
    mine = torch.empty_like(gradient.chunk(n)[0])
    dist.reduce_scatter(mine, list(gradient.chunk(n)))
    shards = [torch.empty_like(mine) for _ in range(n)]
    dist.all_gather(shards, weights.chunk(n)[rank] - mine / n)
    return torch.cat(shards)


def step_divided_first(weights, gradient):
    n, size = dist.get_world_size(), len(weights) // dist.get_world_size()
    mine = gradient.new_empty(size)
    dist.reduce_scatter_tensor(mine, gradient / n)
    own = weights[dist.get_rank() * size :][:size]
    new = torch.empty_like(weights)
    dist.all_gather_into_tensor(new, own - mine)
    return new


def step_alone(weights, gradient):
    return weights - gradient


def step_of_replicas(weights, gradient):
    dist.all_reduce(gradient)
    return weights - gradient / dist.get_world_size()


def step_without_gathering(weights, gradient):
    return zero_step(weights, gradient).chunk(dist.get_world_size())[dist.get_rank()]


def step_shard_alone(weights, gradient):
    n = dist.get_world_size()
    mine = torch.empty_like(weights.chunk(n)[0])
    dist.reduce_scatter_tensor(mine, gradient)
    return weights.chunk(n)[dist.get_rank()] - mine / n


def step_of_the_sum(weights, gradient):
    return zero_step(weights, gradient * dist.get_world_size())


def step_of_old_weights(weights, gradient):
    n = dist.get_world_size()
    mine = torch.empty_like(weights.chunk(n)[0])
    dist.reduce_scatter_tensor(mine, gradient)
    dist.all_gather_into_tensor(weights, weights.chunk(n)[dist.get_rank()].clone())
    return weights


def step_gathered(weights, gradient):
    found = [torch.empty_like(gradient) for _ in range(dist.get_world_size())]
    dist.all_gather(found, gradient)
    return weights - sum(found) / len(found)


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
    "zero_step": [zero_step, step_of_lists, step_divided_first],
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
        (step_without_gathering, "returned only your own shard"),
        (step_shard_alone, "its own updated shard"),
        (step_of_the_sum, "subtracted the sum"),
        (step_of_old_weights, "you gathered the old weights"),
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
