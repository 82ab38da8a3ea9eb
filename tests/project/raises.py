"""Why each `raise` that a program for Optax can reach is no check too many.

By the sentence: why no program that runs could mean what is refused, or what was looked
at.  Each function by its file and name, with the number of its errors if it is not 1.
"""

REASONS = {
    # calls and kinds of arguments
    (
        "A call that Python itself refuses in Optax, too: a name, a number of "
        "arguments or an attribute that is not there."
    ): """
        _engine/functions/calls.py::bind
        _engine/base/node.py::Transformation.__getattr__
        _engine/factories/scheduled.py::MadeSchedule.__getattr__
        _engine/factories/scheduled.py::MadeSchedule.refuse
        _engine/step/rule.py::Rule.__getattr__
        _wrappers/accumulate.py::MultiSteps.__getattr__
    """,
    "An error that was raised already, which gets the name of the call.": """
        _engine/functions/calls.py::explain_misuse
        _wrappers/accumulate.py::MultiSteps.update
    """,
    (
        "What Optax calls has to be a function of these arguments, or a "
        "transformation; it fails at the first step."
    ): """
        _engine/base/__init__.py::require_transformation
        _engine/base/__init__.py::require_pair
        _engine/functions/calls.py::require_takes
        _engine/functions/calls.py::refuse_uncalled
        _engine/trees/search.py::set
        _wrappers/inject.py::inject_hyperparams
        _wrappers/partition.py::partition
        _wrappers/chain.py::named_chain 2
        _linesearch/line.py::_keywords 3
    """,
    (
        "A string, a list, a class or `None` is no number: Optax fails in its first "
        "multiplication. True is one, which is a flag in the place of another "
        "argument; False is 0, and taken. A complex one makes real states complex in "
        "the first step, so that no loop can carry them (complex momentum, "
        "arXiv:2102.08431, takes the real part itself). An array of several "
        "broadcasts against each parameter by its last axis; no public project that "
        "was searched passes one, and `factors` by path, `scale` inside `partition`, "
        "or `stateless` say which is meant."
    ): """
        _engine/factories/argument_checks.py::_argument 2
        _engine/factories/argument_checks.py::_tuple
        _engine/factories/argument_checks.py::scalar 3
        _engine/factories/argument_checks.py::require_array
        _engine/factories/argument_checks.py::CheckedSchedule.__call__
        _engine/factories/argument_checks.py::CheckedSchedule.refuse
        _engine/factories/ranges.py::real_array 2
        _engine/factories/ranges.py::real_scalar
        _schedules/lengths.py::positive 2
    """,
    (
        "A number beyond its range: `REFUSED` in `tests/engine/test_ranges.py` has "
        "the sentence for each name, beside Optax."
    ): """
        _engine/factories/argument_checks.py::_within
        _engine/factories/ranges.py::check
    """,
    (
        'A flag that is neither 0 nor 1, such as the string "false", is true in '
        "Optax; a dtype of integers truncates means to 0, which then never move; a "
        "number in the place of a function or key fails."
    ): """
        _engine/factories/argument_checks.py::ArgumentChecks.check_kinds
    """,
    "Optax fails where the value of a traced number decides a shape or a branch.": """
        _engine/factories/argument_checks.py::ArgumentChecks.checked 2
        _engine/factories/arguments.py::Arguments.read
    """,
    (
        "Only of hyperparameters by path, decays and master weights, which Optax does "
        "not have: there the mapping fails in arithmetic."
    ): """
        _engine/factories/argument_checks.py::ArgumentChecks._wrapping
        _engine/factories/argument_checks.py::ArgumentChecks._number
        _engine/factories/argument_checks.py::_by_path 3
        _engine/factories/by_path.py::_Merge.merged 2
        _engine/factories/by_path.py::made_by_path
    """,
    (
        "Never reaches a user: a signal between parts of the engine, or a method that "
        "every subclass has."
    ): """
        _engine/arrays/lifted.py::_of
        _engine/functions/calls.py::_contents
        _engine/step/nest.py::Composite.pack
        _engine/step/nest.py::Composite.unpack
        _engine/xla/programs.py::_Uncalled.__call__
        _engine/xla/programs.py::_nothing
        _wrappers/partition.py::own_leaves 2
    """,
    "Only rules of users, through `stepax.rule`, which Optax does not have.": """
        _engine/factories/recorded.py::_of_user
        _engine/step/kernel.py::Pass._stack
        _engine/step/kernel.py::Pass._step
        _engine/step/kernel.py::_prepared
        _engine/step/leaf_program.py::_run_leaf 5
        _engine/step/leaf_program.py::run_stage
        _engine/step/mistakes.py::Keywords.__missing__
        _engine/step/mistakes.py::_Undeclared.refuse
        _engine/step/mistakes.py::check_dtype
        _engine/step/mistakes.py::check_encoded 2
        _engine/step/rule.py::Rule.__post_init__ 2
    """,
    (
        "Only packed trees, `axis_name`, weights or `LookaheadParams`-like classes of "
        "Stepax, which no program for Optax makes."
    ): """
        _engine/factories/ranges.py::weights
        _engine/step/array_split.py::axis_index
        _engine/step/leafwise.py::step
        _engine/step/leafwise.py::map_stored
        _engine/step/packed_gradients.py::GradientRuns._check
        _engine/step/packed_gradients.py::GradientRuns._pick
        _engine/step/packed_gradients.py::PackedGradients.open
        _engine/trees/pack.py::_as
        _engine/trees/pack.py::_check
    """,
    "Optax raises there, too.": """
        _wrappers/chain.py::chain
    """,
    # gradients, parameters and states
    "Trees that do not fit each other: Optax fails in `jax.tree.map`.": """
        _engine/step/__init__.py::Gradients._fitting
        _engine/step/__init__.py::Gradients.leaves_of
        _engine/step/leafwise.py::_check
        _engine/trees/errors.py::matched
        _engine/step/mistakes.py::check_stored 2
        _optimizers/lbfgs.py::_check
    """,
    (
        "A gradient of another shape than its parameter or its state: by "
        "broadcasting, Optax returns updates and states of another shape, for which "
        "the step compiles again, and which no `scan` can carry."
    ): """
        _engine/step/__init__.py::Gradients.check_shape
    """,
    (
        "`apply_updates` and `incremental_update` change trees in place of their "
        "like: an update of another shape is a gradient that was summed over an axis "
        "too many, and `vdot` of other shapes multiplies what does not belong "
        "together."
    ): """
        _engine/trees/apply.py::_check 3
    """,
    (
        "A leaf that is no array where an array is needed: Optax fails in arithmetic. "
        "A tree with no array at all, given to `init` where no state is made of it, is "
        "refused if it is a function or a string in place of the parameters."
    ): """
        _engine/step/__init__.py::Gradients._as_array
        _engine/trees/errors.py::holds_arrays
        _engine/trees/errors.py::require_no_slots
        _engine/trees/reduce.py::_arrays
    """,
    (
        "Gradients of integers or booleans: Optax adds updates of size 0.1 to "
        "integers, and rounds them to nothing; `jax.grad` refuses integers."
    ): """
        _engine/step/leafwise.py::require_floats
        _engine/step/mistakes.py::check_trained
    """,
    (
        "Optax, too, raises without parameters, `value` or another keyword that the "
        "transformation reads."
    ): """
        _engine/step/__init__.py::Gradients.params
        _engine/trees/errors.py::require_params
        _engine/step/mistakes.py::declared
        _optimizers/sophia.py::hutchinson_estimator_diag_hessian 2
        _wrappers/sam.py::_opaque
    """,
    (
        "The state of another transformation: Optax fails to read its fields, or "
        "fails to unpack it."
    ): """
        _engine/step/rule.py::Rule.check_state
        _engine/trees/errors.py::require_state
        _engine/trees/errors.py::require_states
        _wrappers/chain.py::NamedChain.unpack
        _wrappers/partition.py::Partition.unpack
        _wrappers/inject.py::_read 3
        _wrappers/lookahead.py::lookahead
        _wrappers/readers.py::present
        _wrappers/readers.py::stored_in 2
        _linesearch/from_state.py::_parameters
        _linesearch/from_state.py::_stored 2
    """,
    (
        "The dtype of what a function of the user's returned cannot be kept in the "
        "state: Optax's loop fails with the types of its carry."
    ): """
        _engine/step/leafwise.py::keep_dtypes
        _engine/arrays/numerics.py::increment
    """,
    # masks, labels and names
    (
        "A mask or labels that fit no leaf, and a label without a transformation: "
        "Optax fails in `jax.tree.map`, or says so. Labels that no leaf has, and "
        "transformations that no label has, are taken."
    ): """
        _engine/trees/selection.py::_assign
        _engine/trees/selection.py::_by_path
        _engine/trees/selection.py::resolve 2
        _wrappers/partition.py::Partition.resolve
    """,
    (
        "Of a number between 0 and 1 in a mask Optax makes True, and of a traced one "
        "an error: a mask chooses whole arrays, and what is meant by 0.5 is a factor. "
        "0.0, 1.0, integers and arrays of one element are taken."
    ): """
        _engine/trees/selection.py::resolve_mask
    """,
    (
        "`tree_get` and `tree_set` raise for a name that is missing or ambiguous in "
        "Optax, too."
    ): """
        _engine/trees/search.py::_places 2
        _engine/trees/search.py::get 3
        _engine/trees/search.py::map_params 2
    """,
    (
        "`tree_set` of another structure, shape or kind: a compiled step would be "
        "compiled again, or fail; Optax's own type changes are `tree_cast`."
    ): """
        _engine/trees/paths.py::_fitted_leaf 3
        _engine/trees/paths.py::fitted
    """,
    "Optax refuses the name or the combination, too, or fails where it is used.": """
        _engine/trees/errors.py::require_one_of
        _engine/trees/reduce.py::norm
        _optimizers/dog.py::dog
        _optimizers/orthogonal.py::coefficients 2
        _schedules/piecewise.py::piecewise_interpolate_schedule
        _wrappers/inject.py::_static_names 2
        _transforms/plateau.py::reduce_on_plateau
        tree.py::_higher
        tree.py::dtype
    """,
    (
        "Two names of one argument, or an argument that Stepax adds: Optax takes no "
        "second one."
    ): """
        _optimizers/adafactor.py::adafactor
        _optimizers/schedule_free.py::_warmed_up
        _transforms/decay.py::resolve_mask_alias
        _transforms/noise.py::chosen_key
    """,
    (
        "Only axes of arrays of examples, matrices or projectors: Optax fails to "
        "index or to decompose them, or, of an axis named twice or beyond the array, "
        "orthogonalizes something else than a matrix."
    ): """
        _optimizers/galore.py::_views
        _optimizers/matrices.py::_axes 3
        _optimizers/matrices.py::resolve
        _optimizers/private.py::_check_examples
        _transforms/clip.py::_check_batch
        _transforms/clip.py::_unit
        _transforms/clip.py::unitwise_clip
    """,
    (
        "Sophia's probe of a complex loss has no real estimate: Optax fails to "
        "differentiate it."
    ): """
        _optimizers/sophia.py::require_real
    """,
    (
        "Noise without a bound is infinite, and noise whose seed nobody gave is not "
        "private: Optax draws it with seed 0."
    ): """
        _optimizers/private.py::differentially_private_aggregate
        _optimizers/private.py::dpsgd
    """,
    "Optax fails to add a schedule to a number.": """
        _optimizers/optimistic.py::optimistic_adam
    """,
    (
        "A step of no gradient never comes: Optax returns zeros for ever. A number "
        "with a fraction is no number of gradients, and True is no number."
    ): """
        _wrappers/accumulate.py::MultiSteps._is_due
        _wrappers/accumulate.py::_check_every_k 2
    """,
    "Optax fails in `lax.cond` or `lax.while_loop`, which take one scalar.": """
        _wrappers/conditional.py::_conditional
        _linesearch/line.py::Line._number
        _transforms/plateau.py::_scalar
    """,
    # schedules
    (
        "A schedule without its boundary never begins, though it was given (Optax "
        "runs the others); a number in place of a schedule fails when it is called. "
        "Boundaries too many are taken."
    ): """
        _schedules/basic.py::join_schedules 3
    """,
    (
        "A fraction of a step beside a learning rate of a hundred or more: the two "
        "are swapped. Alone it is taken, as a fraction of a short run, and `diagnose` "
        "warns."
    ): """
        _engine/factories/scheduled.py::_check_count
    """,
    "A list of pairs in place of a dict: Optax fails. Empty ones are taken.": """
        _schedules/piecewise.py::_scales_at
    """,
    (
        "A corner before the start or behind the end of the cycle: Optax sorts the "
        "corners, so that the peak is never reached, or passed before the first step."
    ): """
        _schedules/piecewise.py::_corners
    """,
    "Only schedules that Stepax adds, which take fractions of a total.": """
        _schedules/lengths.py::_check_total
        _schedules/lengths.py::_exact 2
        _schedules/lengths.py::ends
    """,
    # losses
    (
        "Of other kinds of numbers, or of shapes that do not broadcast, Optax fails, "
        "too. (n,) with (n, 1) it broadcasts to a matrix: with equally many numbers "
        "and no axis for the pairs it is a column that was not flattened; (n, 1) with "
        "(1, m) is taken. A class axis of size 1 is such a column, too."
    ): """
        _losses/inputs.py::_check_kind 3
        _losses/inputs.py::broadcast
        _losses/inputs.py::check_same_shape
        _losses/inputs.py::common_shape 2
        _losses/inputs.py::normal_axes 2
        _losses/ctc.py::_paddings
        _losses/margin.py::_scores
        _losses/contrastive.py::ntxent
        _losses/segmentation.py::_same_classes
    """,
    (
        "A class that there is not: Optax returns NaN, or a loss in which no class is "
        "right. Negative labels that stand for none are taken where Optax returns NaN "
        "for them."
    ): """
        _losses/inputs.py::whole_labels
        _losses/ctc.py::_labels
    """,
    "A norm of degree 0 or below is none.": """
        _losses/contrastive.py::_norm
    """,
    (
        "What is no distribution, weights of other classes, or a sum over the classes "
        "that are weighed afterwards: Optax fails or returns a Dice coefficient above "
        "1."
    ): """
        _losses/segmentation.py::_axes
        _losses/segmentation.py::_checked
        _losses/segmentation.py::_weights
    """,
    # functions
    (
        "Optax fails for matrices that are not square, systems that do not fit, or "
        "complex ones; a root of degree 0 or below is NaN there."
    ): """
        _functions/linear_algebra.py::_check_product 2
        _functions/linear_algebra.py::_check_system 3
        _functions/linear_algebra.py::_square 2
        _functions/linear_algebra.py::matrix_inverse_pth_root
        _functions/linear_algebra.py::power_iteration 2
        assignment.py::hungarian_algorithm 2
        second_order.py::_tangent
        _functions/multi_normal.py::MultiNormalDiagFromLogScale.__init__
    """,
    (
        "Optax fails for batches that cannot be split so, and for accumulators that "
        "do not fit."
    ): """
        _functions/microbatches.py::Parts.__init__ 2
        _functions/microbatches.py::Weights.__init__
        _functions/microbatches.py::axes_by_name
        _functions/microbatches.py::axes_of 2
        _functions/microbatches.py::axis_of
        _functions/microbatches.py::count_of
        _functions/microbatches.py::place 2
        _functions/microbatches.py::spread
        microbatching.py::_check_kind 2
        microbatching.py::_check_plan 2
        microbatching.py::_loop
        microbatching.py::micro_vmap 2
    """,
    (
        "A mean over no sample, and noise of no size, are 0 / 0 in Optax; integers "
        "have no perturbation."
    ): """
        perturbations.py::_check
        perturbations.py::make_perturbed_fun 2
    """,
    (
        "The set is empty, or has no order: bounds that cross, a negative radius, "
        "complex numbers. Scales are one number for all leaves; an array of one "
        "element is."
    ): """
        projections.py::_check_real
        projections.py::_check_scale
        projections.py::_direction
        projections.py::_radius
        projections.py::require_order
    """,
    (
        "The derivative is multiplied by one number, as in Optax, which fails for a "
        "traced one."
    ): """
        _transforms/scale.py::scale_gradient
    """,
}
