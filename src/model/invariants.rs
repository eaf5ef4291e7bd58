//! Named predicates of the rules that storage must keep.
