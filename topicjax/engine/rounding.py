"""Round the factors of matrix products as accelerators do by default, emulated on any device.

GPUs round the factors of float32 products to TF32 (10 bits of the mantissa are stored), TPUs to bfloat16
(7 bits); both add up the products in float32.  On the CPU no option of jax does this.  Here the traced
program is rewritten instead, after differentiation, so that the products of the gradient are rounded too.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
from jax.extend import core
from jax.extend.core.primitives import reduce_precision_p

PRODUCTS = ("dot_general", "ragged_dot_general", "conv_general_dilated")
FULL = (jax.lax.Precision.HIGHEST, jax.lax.Precision.HIGHEST)  # of both factors
UNSTATED = (None, (jax.lax.Precision.DEFAULT, jax.lax.Precision.DEFAULT))
EXPONENT_BITS = 8  # of float32, TF32 and bfloat16 alike


def with_rounded_products(function: Callable[..., Any], mantissa_bits: int) -> Callable[..., Any]:
    """Round the float32 factors of every product in a function to `mantissa_bits`, ties to even.

    As on an accelerator, a product whose precision is stated in the code keeps it.  The result can be
    compiled and mapped, but must not be differentiated: the products of that gradient would not be rounded.
    """

    @functools.wraps(function)
    def rounded(*args: Any) -> Any:
        with jax.default_matmul_precision("default"):
            program, shapes = jax.make_jaxpr(function, return_shape=True)(*args)
        program = program.replace(jaxpr=round_factors(program.jaxpr, mantissa_bits, {}))
        results = core.jaxpr_as_fun(program)(*jax.tree.leaves(args))
        return jax.tree.unflatten(jax.tree.structure(shapes), results)

    return rounded


def round_factors(jaxpr: core.Jaxpr, mantissa_bits: int, known: dict[int, core.Jaxpr]) -> core.Jaxpr:
    """Rewrite a traced program and the programs inside it: loops, branches and calls.

    `known` has the rewritten ones by the id of the original, so that a program called twice is compiled once.
    """
    if id(jaxpr) in known:
        return known[id(jaxpr)]

    def rewritten(value: Any) -> Any:
        if isinstance(value, core.Jaxpr):
            return round_factors(value, mantissa_bits, known)
        if isinstance(value, core.ClosedJaxpr):
            return value.replace(jaxpr=round_factors(value.jaxpr, mantissa_bits, known))
        return tuple(map(rewritten, value)) if type(value) is tuple else value

    equations = []
    for equation in jaxpr.eqns:
        params = {name: rewritten(value) for name, value in equation.params.items()}
        factors = list(equation.invars)
        if equation.primitive.name in PRODUCTS and params["precision"] in UNSTATED:
            params["precision"] = FULL
            for place, factor in enumerate(equation.invars):
                kind: Any = factor.aval
                if kind.dtype == "float32":
                    factors[place] = rounded = core.Var(kind)
                    bits = dict(exponent_bits=EXPONENT_BITS, mantissa_bits=mantissa_bits)
                    equations.append(
                        equation.replace(
                            primitive=reduce_precision_p, invars=[factor], outvars=[rounded], params=bits
                        )
                    )
        equations.append(equation.replace(invars=factors, params=params))
    known[id(jaxpr)] = jaxpr.replace(eqns=equations)
    return known[id(jaxpr)]
