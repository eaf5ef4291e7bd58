//! What was counted for a call of a model of which a worker reports the usage.

use super::Base;
use super::prepared::Prepared;
use crate::codec::window_id::receipt_prefix;
use crate::engine::Engine;
use crate::format::Role;
use crate::model::Usage;
use crate::store::meta::{SessionKey, Tip};

impl Engine {
    /// Tokens that were counted for the reported call: those of the window that it
    /// names, of the preamble, and of what comes before the answer in the turn. Nothing
    /// if the window is another than the one that the turn follows, or if that cannot
    /// be told. Costs no query.
    pub(super) fn counted_for(
        &self,
        key: &SessionKey,
        tip: &Tip,
        base: &Base,
        new: &[Prepared],
        usage: &Usage,
    ) -> Option<u64> {
        let window = self.inner.window_ids.decode(&key.tenant, &key.session, &usage.window_id)?;
        let (head, turn) = (&tip.head, &base.turn);
        let is_of_turn = base.branch.is_none()
            && window.branch == turn.branch
            && window.known == turn.version
            && window.receipt == receipt_prefix(turn.receipt);
        let is_as_counted = window.is_of_config(head)
            && window.window_state == head.window_state
            && window.cut_to == 0
            && !window.close_pending;
        if !is_of_turn || !is_as_counted {
            return None;
        }
        let is_answer = |entry: &Prepared| {
            entry.message.as_ref().is_some_and(|message| message.reading().role == Role::Model)
        };
        // What was said with the window before the model answered. A turn without an
        // answer does not tell which of its entries were.
        let said = match new.iter().position(is_answer) {
            Some(answer) => {
                let (said, answers) = new.split_at(answer);
                // Of several calls it may be the last that is reported, or all together.
                let next = answers.iter().skip_while(|entry| is_answer(entry));
                if next.into_iter().any(is_answer) {
                    return None;
                }
                said
            }
            None if new.is_empty() => new,
            None => return None,
        };
        // The model may have had an output whole of which the log has a preview.
        if said.iter().any(|entry| !entry.outputs.is_empty()) {
            return None;
        }
        let counted = head.window_tokens(turn.log_tokens).saturating_add(head.preamble_tokens);
        Some(said.iter().fold(counted, |sum, entry| sum.saturating_add(entry.tokens)))
    }
}
