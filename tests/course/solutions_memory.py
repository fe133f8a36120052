"""Answers to the exercises on memory and precision: right ones, and wrong ones with their hints."""

import torch
import torch.distributed as dist

# --- mem_states ---
EACH = {
    "float32": (4, 4, 0, 4),
    "mixed": (2, 2, 4, 4),
    "mixed, float32 gradients": (2, 4, 4, 4),
    "bfloat16": (2, 2, 0, 2),
}
MOMENTS = {"sgd": 0, "momentum": 1, "adam": 2}


def states(parameters, recipe, optimizer):
    weight, gradient, master, moment = EACH[recipe]
    moments = MOMENTS[optimizer] * moment
    return [parameters * size for size in (weight, gradient, master, moments)]


def states_by_cases(parameters, recipe, optimizer):
    half, mixed = recipe != "float32", "mixed" in recipe
    weights = parameters * (2 if half else 4)
    wide = recipe == "float32" or "gradients" in recipe
    moments = MOMENTS[optimizer] * parameters * (2 if recipe == "bfloat16" else 4)
    return weights, parameters * (4 if wide else 2), 4 * parameters * mixed, moments


def states_without_master(parameters, recipe, optimizer):
    found = states(parameters, recipe, optimizer)
    return [*found[:2], 0, found[3]]


def states_always_master(parameters, recipe, optimizer):
    found = states(parameters, recipe, optimizer)
    return [*found[:2], 4 * parameters, found[3]]


def states_moments_as_weights(parameters, recipe, optimizer):
    found = states(parameters, recipe, optimizer)
    return [*found[:3], MOMENTS[optimizer] * found[0]]


def states_always_adam(parameters, recipe, optimizer):
    return states(parameters, recipe, "adam")


def states_gradients_as_weights(parameters, recipe, optimizer):
    found = states(parameters, recipe, optimizer)
    return [found[0], found[0], *found[2:]]


def states_per_parameter(parameters, recipe, optimizer):
    return states(1, recipe, optimizer)


# --- mem_recompute ---


def recompute(layers, every, inputs, whole, f, b):
    return (layers / every - 1) * inputs + every * whole, layers * (f + f + b)


def recompute_by_moments(layers, every, inputs, whole, f, b):
    segments = layers // every
    held = [before * inputs + every * whole for before in range(segments)]
    return max(held), layers * f + segments * every * (f + b)


def recompute_free(layers, every, inputs, whole, f, b):
    return recompute(layers, every, inputs, whole, f, b)[0], layers * (f + b)


def recompute_backward_twice(layers, every, inputs, whole, f, b):
    return recompute(layers, every, inputs, whole, f, b)[0], 2 * layers * (f + b)


def recompute_not_the_last(layers, every, inputs, whole, f, b):
    peak, seconds = recompute(layers, every, inputs, whole, f, b)
    return peak, seconds - every * f


def recompute_inputs_alone(layers, every, inputs, whole, f, b):
    return layers / every * inputs, layers * (2 * f + b)


def recompute_one_layer(layers, every, inputs, whole, f, b):
    return (layers / every - 1) * inputs + whole, layers * (2 * f + b)


def recompute_input_twice(layers, every, inputs, whole, f, b):
    return layers / every * inputs + every * whole, layers * (2 * f + b)


def recompute_every_input(layers, every, inputs, whole, f, b):
    return (layers - 1) * inputs + every * whole, layers * (2 * f + b)


# --- loss_scale ---


def scaling(gradients, scale, interval):
    weight, good, taken = 0.0, 0, 0
    for gradient in gradients:
        scaled = torch.tensor(gradient * scale, dtype=torch.float16)
        if not scaled.isfinite():
            scale, good = scale / 2, 0
            continue
        weight -= scaled.item() / scale
        good, taken = good + 1, taken + 1
        if good == interval:
            scale, good = scale * 2, 0
    return weight, scale, taken


def scaling_by_size(gradients, scale, interval):
    weight, since, taken = 0.0, 0, 0
    for g in gradients:
        fits = abs(g) * scale <= 65504
        weight -= g * fits
        taken += fits
        since = (since + 1) * fits
        scale *= 1.0 if 0 < since < interval else (2.0 if fits else 0.5)
        since %= interval
    return weight, scale, taken


def _wrong(take=False, unscale=True, halve=True, restart=True, again=True, grow=True, count=False):
    def scaling_wrong(gradients, scale, interval):
        weight, good, taken = 0.0, 0, 0
        for gradient in gradients:
            over = abs(gradient * scale) > 65504
            if not over or take:
                weight -= gradient if unscale else gradient * scale
            taken += not over or count or take
            if over:
                scale, good = scale / 2 if halve else scale, 0 if restart else good
                continue
            good += 1
            if grow and good == interval:
                scale, good = 2 * scale, 0 if again else good
        return weight, scale, taken

    return scaling_wrong


def scaling_static(gradients, scale, interval):
    return _wrong(halve=False, grow=False)(gradients, scale, interval)


scaling_takes_all = _wrong(take=True)
scaling_scaled = _wrong(unscale=False)
scaling_never_halves = _wrong(halve=False)
scaling_not_in_a_row = _wrong(restart=False)
scaling_doubles_once = _wrong(again=False)
scaling_never_grows = _wrong(grow=False)
scaling_counts_all = _wrong(count=True)


# --- master_weights ---


def flag(bad):
    bad = bad.float()
    dist.all_reduce(bad, op=dist.ReduceOp.MAX)
    return bad > 0


def master(master, grads):
    for grad in grads:
        overflow = 1.0 - grad.isfinite().all().float()
        dist.all_reduce(overflow, op=dist.ReduceOp.MAX)
        if not overflow:
            master = master - grad.float() / 1024
    return master


def master_all_flags_at_once(master, grads):
    bad = (~grads.isfinite().all(1)).long()
    dist.all_reduce(bad)
    return master - grads[bad == 0].float().sum(0) / 1024


def master_gathered_flags(master, grads):
    for grad in grads:
        fine = grad.isfinite().all().float().view(1)
        everyone = [torch.empty(1) for _ in range(dist.get_world_size())]
        dist.all_gather(everyone, fine)
        master -= grad.float().nan_to_num(0, 0) / 1024 * min(everyone)
    return master


def master_alone(master, grads):
    for grad in grads:
        if grad.isfinite().all():
            master -= grad.float() / 1024
    return master


def master_takes_all(master, grads):
    for grad in grads:
        flag(~grad.isfinite().all())
        master -= grad.float() / 1024
    return master


def master_in_half(master, grads):
    weights = master.half()
    for grad in grads:
        if not flag(~grad.isfinite().all()):
            weights -= grad / 1024
    return weights.float()


def master_divided_in_half(master, grads):
    for grad in grads:
        if not flag(~grad.isfinite().all()):
            master -= (grad / 1024).float()
    return master


def master_scaled(master, grads):
    for grad in grads:
        if not flag(~grad.isfinite().all()):
            master -= grad.float()
    return master


def master_stops(master, grads):
    for grad in grads:
        if flag(~grad.isfinite().all()):
            break
        master -= grad.float() / 1024
    return master


def master_only_if_all_overflow(master, grads):
    for grad in grads:
        bad = 1.0 - grad.isfinite().all().float()
        dist.all_reduce(bad, op=dist.ReduceOp.MIN)
        if not bad:
            master -= grad.float() / 1024
    return master


def master_skips_all(master, grads):
    for grad in grads:
        if not flag(grad.isfinite().all()):
            master -= grad.float() / 1024
    return master


def master_nothing(master, grads):
    flag(~grads.isfinite().all())
    return master


def master_averaged(master, grads):
    for grad in grads:
        overflow = flag(~grad.isfinite().all())
        grad = grad.float().nan_to_num(0, 0, 0)
        dist.all_reduce(grad)
        if not overflow:
            master -= grad / 1024
    return master


def master_sends_gradients(master, grads):
    for grad in grads:
        everyone = [torch.empty_like(grad) for _ in range(dist.get_world_size())]
        dist.all_gather(everyone, grad)
        if torch.stack(everyone).isfinite().all():
            master -= grad.float() / 1024
    return master


RIGHT = {
    "mem_states": [states, states_by_cases],
    "mem_recompute": [recompute, recompute_by_moments],
    "loss_scale": [scaling, scaling_by_size],
    "master_weights": [master, master_all_flags_at_once, master_gathered_flags],
}
WRONG = {
    "mem_states": [
        (states_without_master, "a float32 copy that the optimizer updates"),
        (states_always_master, "Only mixed precision has a second copy"),
        (states_moments_as_weights, "in the precision of the weights that it updates"),
        (states_always_adam, "(sgd has 0|momentum has 1)"),
        (states_gradients_as_weights, "the gradient has 2, and should have 4"),
        (states_per_parameter, "`parameters` does not count"),
    ],
    "mem_recompute": [
        (recompute_free, "each forward runs once more"),
        (recompute_backward_twice, "two forwards and a backward"),
        (recompute_not_the_last, "were not kept either"),
        (recompute_inputs_alone, "the activations of its layers are whole"),
        (recompute_one_layer, "not one"),
        (recompute_input_twice, "you counted it twice"),
        (recompute_every_input, "only each segment's first input"),
    ],
    "loss_scale": [
        (scaling_takes_all, "skip it"),
        (scaling_scaled, "divide it by the scale"),
        (scaling_never_halves, "must be halved"),
        (scaling_not_in_a_row, "in a row double"),
        (scaling_doubles_once, "starts again from 0"),
        (scaling_never_grows, "never grew"),
        (scaling_counts_all, "those that moved the weight"),
        (scaling_static, "the scale never changes"),
    ],
    "master_weights": [
        (master_alone, "all ranks must know"),
        (master_takes_all, "not finite: no step was skipped"),
        (master_in_half, "rounded away"),
        (master_divided_in_half, "before.* you divide"),
        (master_scaled, "divide them by"),
        (master_stops, "skip that step alone"),
        (master_only_if_all_overflow, "only the step in which every rank overflows"),
        (master_skips_all, "the one step that was taken"),
        (master_nothing, "nothing was updated:"),
        (master_averaged, "you reduced the gradients"),
        (master_sends_gradients, "one number for each step"),
    ],
}
