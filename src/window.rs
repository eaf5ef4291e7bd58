//! Windows: the message list that a model's API is certain to accept, as a pure
//! function of the log.
//!
//! The log is divided into *rounds*: what the model said in one step, then all
//! that followed until its next step. What a round becomes depends on nothing
//! but its entries and on what came before, so a log that grows only adds to
//! the newest round, and only a late result changes an older one. Most rounds
//! are shown as they were recorded, entry for entry; only the others are
//! rendered. Before all that, what the API would refuse of an entry by itself is
//! mended.

mod admit;
mod assembler;
mod edit;
mod entries;
mod head;
mod messages;
mod prepared;
mod provider_calls;
mod round;
mod snip;
mod truncate;
mod view;

pub use admit::{Admitted, admit};
pub use assembler::Assembler;
pub use prepared::{Message, Prepared, preparation};
pub use snip::{LongResult, Snippable, long_results, shown_entries, snippable, snips, with_shortened};
pub use truncate::{
    Atom, AtomKind, Deepening, atoms, cut_before, last_messages, least_tokens, opening, tail, truncate,
};
pub use view::{CommonPrefix, Window};
