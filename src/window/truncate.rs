//! Truncation: which of the oldest steps leave a window so that it fits.

use super::view::Window;
use crate::format::Role;
use crate::limits::{CUT_ATTEMPTS, FIRST_MESSAGE_TOKENS, KEPT_SYSTEM_PERCENT};
use crate::model::{Cut, Origin, Seq, WireFormat};

/// What an atom is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtomKind {
    /// A step of the model with the results of its calls.
    Step,
    /// A message of the user.
    User,
    /// A system or developer entry.
    System,
}

/// What stays or leaves whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Atom {
    /// What it is.
    pub kind: AtomKind,
    /// Its first entry.
    pub first: Seq,
    /// How many entries it has.
    pub entries: u64,
    /// Their tokens.
    pub tokens: u64,
}

/// Tokens of a notice, roughly.
const NOTICE_TOKENS: u64 = 80;

/// The atoms of a window from its cut on, in order.
pub fn atoms(window: &Window<'_>) -> Vec<Atom> {
    let log = window.log();
    let first_kept = log.state.cut.as_ref().map_or(Seq(0), |cut| cut.first_kept);
    let mut atoms: Vec<Atom> = Vec::new();
    for round in 0..log.rounds.len() {
        let mut is_step_open = false;
        for slot in log.slots_of(round).iter().filter(|slot| slot.is_of_log() && slot.seq >= first_kept) {
            let kind = match slot.role {
                Role::User => AtomKind::User,
                Role::System => AtomKind::System,
                Role::Model | Role::Results | Role::Unknown => AtomKind::Step,
            };
            match atoms.last_mut() {
                Some(atom) if is_step_open && kind == AtomKind::Step => {
                    atom.first = atom.first.min(slot.seq);
                    atom.entries += 1;
                    atom.tokens = atom.tokens.saturating_add(slot.tokens);
                }
                _ => atoms.push(Atom { kind, first: slot.seq, entries: 1, tokens: slot.tokens }),
            }
            // Where nothing is known of entries, each stands by itself; elsewhere those
            // of no known kind go with the step that they stand beside.
            is_step_open = kind == AtomKind::Step && log.api.format != WireFormat::Opaque;
        }
    }
    atoms
}

/// The cut of a window after which it has at most `tokens_max` tokens, as far as can
/// be told from its atoms; the deepest there is if none goes so far. Nothing if
/// nothing can leave.
pub fn truncate(window: &Window<'_>, tokens_max: u64) -> Option<Cut> {
    let atoms = atoms(window);
    let plan = Plan::new(window, &atoms, tokens_max);
    // The deeper a cut, the fewer tokens: what stays of what leaves took as many before.
    let (mut fits_not, mut fits) = (0, atoms.len().checked_sub(1).filter(|deepest| *deepest > 0)?);
    while fits_not + 1 < fits {
        let kept = fits_not.midpoint(fits);
        if plan.cut(kept).1 <= tokens_max { fits = kept } else { fits_not = kept }
    }
    Some(plan.cut(fits).0)
}

/// Cuts a window deeper and deeper, until it has as few tokens as it may: what stands
/// in place of what left may take more than was reckoned.
#[derive(Clone, Copy, Debug)]
pub struct Deepening {
    tokens_max: u64,
    aim: u64,
    attempts: usize,
}

impl Deepening {
    /// To at most so many tokens.
    pub fn to(tokens_max: u64) -> Self {
        Self { tokens_max, aim: tokens_max, attempts: CUT_ATTEMPTS }
    }

    /// The next cut of a window that takes so many tokens; nothing if these are few
    /// enough, or if no more can leave.
    pub fn next(&mut self, window: &Window<'_>, tokens: u64) -> Option<Cut> {
        let excess = tokens.checked_sub(self.tokens_max).filter(|excess| *excess > 0)?;
        self.attempts = self.attempts.checked_sub(1)?;
        let cut = truncate(window, self.aim);
        self.aim = self.aim.saturating_sub(excess);
        cut
    }
}

/// The cut that leaves at most the last `messages` entries, and the newest atom in
/// any case. Nothing if nothing leaves.
pub fn last_messages(window: &Window<'_>, messages: u64) -> Option<Cut> {
    let atoms = atoms(window);
    let mut entries = 0;
    let fitting = atoms.iter().rev().take_while(|atom| {
        entries += atom.entries;
        entries <= messages
    });
    let kept = atoms.len().checked_sub(fitting.count().max(1)).filter(|kept| *kept > 0)?;
    Some(Plan::new(window, &atoms, window.tokens()).cut(kept).0)
}

/// The cut behind the system entries with which a log begins, so that pins come
/// after them; nothing if there are none.
pub fn opening(window: &Window<'_>) -> Option<Cut> {
    let atoms = atoms(window);
    let system = atoms.iter().take_while(|atom| atom.kind == AtomKind::System).count();
    (0 < system && system < atoms.len()).then(|| Plan::new(window, &atoms, window.tokens()).cut(system).0)
}

/// What the cuts of a window have in common.
struct Plan<'a> {
    atoms: &'a [Atom],
    before: Cut,
    /// Tokens of what stands before the atoms, without the entries of the log.
    slot_tokens: u64,
    /// The system entries that stay already, with their tokens.
    system: Vec<(Seq, u64)>,
    first_user_tokens: u64,
    last_user_tokens: u64,
    /// Tokens that system entries from the midst of what leaves may take.
    system_max: u64,
}

impl<'a> Plan<'a> {
    fn new(window: &Window<'_>, atoms: &'a [Atom], tokens_max: u64) -> Self {
        let log = window.log();
        let before = log.state.cut.clone().unwrap_or_default();
        let head = || log.slots_of(0).iter().filter(|slot| !slot.is_of_log() || slot.seq < before.first_kept);
        let of = |seq: Option<Seq>| {
            head().filter(|slot| slot.is_of_log() && Some(slot.seq) == seq).map(|slot| slot.tokens).sum()
        };
        Self {
            atoms,
            slot_tokens: head()
                .filter(|slot| !slot.is_of_log() && slot.origin != Origin::Notice)
                .map(|slot| slot.tokens)
                .sum(),
            system: head()
                .filter(|slot| slot.is_of_log() && before.system.binary_search(&slot.seq).is_ok())
                .map(|slot| (slot.seq, slot.tokens))
                .collect(),
            first_user_tokens: of(before.first_user),
            last_user_tokens: of(before.last_user),
            system_max: u64::try_from(u128::from(tokens_max) * u128::from(KEPT_SYSTEM_PERCENT) / 100)
                .unwrap_or(u64::MAX),
            before,
        }
    }

    /// The cut before atom `kept`, and the tokens of the window after it.
    fn cut(&self, kept: usize) -> (Cut, u64) {
        let (leaving, staying) = self.atoms.split_at(kept.min(self.atoms.len()));
        let mut cut = self.before.clone();
        cut.first_kept = staying.first().map_or(cut.first_kept, |atom| atom.first);
        let (system, opening) = self.system(leaving);
        let mut tokens = system.iter().fold(self.slot_tokens, |sum, (_, tokens)| sum.saturating_add(*tokens));
        cut.system = system.into_iter().map(|(seq, _)| seq).collect();
        cut.opening = opening;
        let mut users = leaving.iter().filter(|atom| atom.kind == AtomKind::User);
        let (first, last) = (users.next(), users.next_back());
        let last = last.or(first);
        let mut first_tokens = self.first_user_tokens;
        if cut.first_user.is_none()
            && let Some(first) = first
        {
            cut.first_user = Some(first.first);
            first_tokens = first.tokens;
        }
        let mut last_tokens = self.last_user_tokens;
        if staying.iter().any(|atom| atom.kind == AtomKind::User) {
            cut.last_user = None;
            last_tokens = 0;
        } else if let Some(last) = last {
            cut.last_user = Some(last.first);
            last_tokens = last.tokens;
        }
        if cut.first_user != cut.last_user {
            tokens = tokens.saturating_add(first_tokens.min(FIRST_MESSAGE_TOKENS));
        }
        tokens = tokens.saturating_add(last_tokens).saturating_add(NOTICE_TOKENS);
        let left: Vec<_> = leaving.iter().filter(|atom| !cut.keeps(atom.first)).collect();
        cut.omitted_entries += left.iter().map(|atom| atom.entries).sum::<u64>();
        cut.omitted_tokens =
            left.iter().fold(cut.omitted_tokens, |sum, atom| sum.saturating_add(atom.tokens));
        for (seq, tokens) in &self.system {
            if !cut.keeps(*seq) {
                cut.omitted_entries += 1;
                cut.omitted_tokens = cut.omitted_tokens.saturating_add(*tokens);
            }
        }
        // A message that was placed again before, and now is not, left for good.
        if self.before.last_user.is_some_and(|seq| !cut.keeps(seq)) {
            cut.omitted_entries += 1;
            cut.omitted_tokens = cut.omitted_tokens.saturating_add(self.last_user_tokens);
        }
        tokens = staying.iter().fold(tokens, |sum, atom| sum.saturating_add(atom.tokens));
        (cut, tokens)
    }

    /// The system entries that stay, in order, and how many of them the log begins with:
    /// those before the first step stay for good, later ones as far as there is room,
    /// the newest first.
    fn system(&self, leaving: &[Atom]) -> (Vec<(Seq, u64)>, u64) {
        let is_system = |atom: &&Atom| atom.kind == AtomKind::System;
        let begins = self.before.first_kept == Seq(0);
        let first = leaving.iter().take_while(|atom| atom.kind != AtomKind::Step).count();
        let (first, later) = leaving.split_at(if begins { first } else { 0 });
        let of = |atom: &Atom| (atom.first, atom.tokens);
        let opened = usize::try_from(self.before.opening).unwrap_or(usize::MAX).min(self.system.len());
        let (opened, since) = self.system.split_at(opened);
        let mut kept: Vec<_> = opened.to_vec();
        kept.extend(first.iter().filter(is_system).map(of));
        let opening = kept.len();
        let mut room = self.system_max;
        let newest_first = later.iter().filter(is_system).map(of).rev().chain(since.iter().rev().copied());
        let fitting = newest_first.take_while(|(_, tokens)| {
            let fits = *tokens <= room;
            room = room.saturating_sub(*tokens);
            fits
        });
        kept.extend(fitting);
        if let Some(later) = kept.get_mut(opening..) {
            later.reverse();
        }
        (kept, opening as u64)
    }
}

/// The least tokens that a window can be truncated to, about.
pub fn least_tokens(window: &Window<'_>) -> u64 {
    let atoms = atoms(window);
    Plan::new(window, &atoms, window.tokens()).cut(atoms.len().saturating_sub(1)).1
}

/// The cut that leaves the newest atoms of at most so many tokens, and the newest in
/// any case. Nothing if nothing leaves.
pub fn tail(window: &Window<'_>, tokens_max: u64) -> Option<Cut> {
    let atoms = atoms(window);
    let mut tokens = 0_u64;
    let fitting = atoms.iter().rev().take_while(|atom| {
        tokens = tokens.saturating_add(atom.tokens);
        tokens <= tokens_max
    });
    let kept = atoms.len().checked_sub(fitting.count().max(1)).filter(|kept| *kept > 0)?;
    Some(Plan::new(window, &atoms, window.tokens()).cut(kept).0)
}

/// The cut before the atom that begins with an entry; nothing if none does, or if
/// nothing leaves.
pub fn cut_before(window: &Window<'_>, first: Seq) -> Option<Cut> {
    let atoms = atoms(window);
    let kept = atoms.iter().position(|atom| atom.first == first).filter(|kept| *kept > 0)?;
    Some(Plan::new(window, &atoms, window.tokens()).cut(kept).0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn atom() -> impl Strategy<Value = (AtomKind, u64)> {
        let kind = prop_oneof![
            5 => Just(AtomKind::Step),
            3 => Just(AtomKind::User),
            2 => Just(AtomKind::System),
        ];
        (kind, prop_oneof![0..40_u64, 0..3 * FIRST_MESSAGE_TOKENS])
    }

    proptest! {
        #[test]
        fn a_deeper_cut_has_no_more_tokens(
            atoms in prop::collection::vec(atom(), 0..40),
            first_user in prop::option::of(0..3 * FIRST_MESSAGE_TOKENS),
            last_user in prop::option::of(0..3 * FIRST_MESSAGE_TOKENS),
            is_cut in any::<bool>(),
            kept in prop::collection::vec(0..500_u64, 0..5),
            system_max in prop_oneof![0..100_u64, 0..5_000_u64],
        ) {
            let first_kept = if is_cut { Seq(10) } else { Seq(0) };
            let atoms: Vec<_> = (10..)
                .zip(atoms)
                .map(|(seq, (kind, tokens))| Atom { kind, first: Seq(seq), entries: 1, tokens })
                .collect();
            // A window that was cut keeps a last message only if it keeps a first one.
            let first = first_user.filter(|_| is_cut);
            let last = last_user.filter(|_| first.is_some());
            let kept: Vec<_> = (3..).map(Seq).zip(kept.into_iter().filter(|_| is_cut)).collect();
            let before = Cut {
                first_kept,
                system: kept.iter().map(|(seq, _)| *seq).collect(),
                opening: 1.min(kept.len() as u64),
                first_user: first.map(|_| Seq(1)),
                last_user: last.map(|_| Seq(2)),
                ..Cut::default()
            };
            let plan = Plan {
                atoms: &atoms,
                before,
                slot_tokens: 7,
                system: kept.clone(),
                first_user_tokens: first.unwrap_or(0),
                last_user_tokens: last.unwrap_or(0),
                system_max,
            };
            let tokens: Vec<_> = (1..atoms.len()).map(|kept| plan.cut(kept).1).collect();
            prop_assert!(tokens.is_sorted_by(|shallower, deeper| shallower >= deeper), "{tokens:?} of {atoms:?}");
            // Later system entries take no more than they may, whatever stayed before.
            for kept in 1..atoms.len() {
                let (cut, _) = plan.cut(kept);
                let of = |seq: &Seq| {
                    let own = atoms.iter().find(|atom| atom.first == *seq).map(|atom| atom.tokens);
                    own.or_else(|| plan.system.iter().find(|(kept, _)| kept == seq).map(|(_, tokens)| *tokens))
                };
                let opening = usize::try_from(cut.opening).unwrap();
                let later: u64 = cut.system.iter().skip(opening).filter_map(of).sum();
                prop_assert!(later <= system_max, "{later} of {system_max}");
                prop_assert!(cut.system.is_sorted());
            }
        }
    }
}
