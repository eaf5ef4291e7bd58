//! Rolling small segments up.

use super::upkeep::go_on;
use super::{Engine, Error, keys};
use crate::codec::segment::{BranchLine, Header};
use crate::limits::{ROLL_UP_RAW_BYTES_MAX, ROLL_UP_SEGMENTS_MIN, ROLL_UP_SMALL_BYTES};
use crate::model::{Segment, Seq};
use crate::store::ErrorKind;
use crate::store::meta::{BranchKey, CommitOutcome, NewRollUp, RollUpPolicy, SessionKey};

impl Engine {
    /// Rolls up small segments wherever there are enough of them, once on each
    /// branch. Returns how many roll-ups were made. A failure keeps no other
    /// branch from it, as in [`Engine::seal_due`].
    pub async fn roll_up_due(&self) -> Result<usize, Error> {
        const BATCH: u32 = 100;
        let mut done = Ok(0);
        let mut after: Option<BranchKey> = None;
        loop {
            let policy = self.roll_up_policy();
            let branches = self.inner.meta.roll_up_candidates(policy, after.as_ref(), BATCH).await?;
            let Some(last) = branches.last() else { return done };
            after = Some(last.clone());
            for branch in branches {
                let merged = self.roll_up_branch(&branch).await;
                go_on(&mut done, &branch.branch, merged.map(usize::from))?;
            }
        }
    }

    fn roll_up_policy(&self) -> RollUpPolicy {
        RollUpPolicy {
            small_bytes: ROLL_UP_SMALL_BYTES,
            raw_bytes_max: ROLL_UP_RAW_BYTES_MAX,
            idle_before: self.now().minus(self.inner.options.roll_up_idle),
        }
    }

    /// Merges the first run of small adjacent segments of a branch that is worth
    /// it; false if there is none or another was faster.
    pub async fn roll_up_branch(&self, branch: &BranchKey) -> Result<bool, Error> {
        let segments = self.inner.meta.segments(branch, Seq(0), Seq(u64::MAX)).await?;
        let lineage = self.inner.meta.lineage(branch).await?;
        let run = due_run(&segments, self.roll_up_policy());
        let (Some(run), Some(tip)) = (run, lineage.last()) else { return Ok(false) };
        let session = SessionKey { tenant: branch.tenant.clone(), session: tip.session.clone() };
        let generation = self.inner.generation.current();
        let mut merged: Option<Header> = None;
        let mut lines = Vec::with_capacity(run.len());
        for segment in run {
            let Some(decoded) = self.segment_whole(&session, segment).await? else { return Ok(false) };
            let header = decoded.header()?;
            lines.extend(decoded.lines.iter().cloned());
            merged = Some(match merged {
                None => Header {
                    lineage: lineage.iter().map(BranchLine::from).collect(),
                    writer: generation,
                    ..header
                },
                Some(mut merged) => {
                    merged.turns.extend(header.turns);
                    merged.last_seq = header.last_seq;
                    merged
                }
            });
        }
        let (Some(header), Some(first), Some(last)) = (merged, run.first(), run.last()) else {
            return Ok(false);
        };
        let key =
            keys::segment(&self.inner.entropy, &branch.tenant, &branch.branch, header.first_seq, generation);
        let versions = (first.first_version, last.last_version);
        let new = self.put_segment(&branch.branch, &key, header, lines, versions).await?;
        let roll_up = NewRollUp {
            key: branch.clone(),
            session: session.session,
            old: run.to_vec(),
            new,
            generation,
            erase_not_before: self.now().plus(self.inner.options.grace),
        };
        match self.inner.meta.commit_roll_up(roll_up).await {
            Ok(CommitOutcome::Committed) => {
                metrics::counter!("turnkeep_roll_ups_total").increment(1);
                Ok(true)
            }
            Ok(CommitOutcome::NotAsExpected) => Ok(false),
            Err(error) if error.kind == ErrorKind::Fenced => {
                self.inner
                    .generation
                    .replace_fenced(self.inner.meta.as_ref(), generation, self.now())
                    .await?;
                Ok(false)
            }
            Err(error) => Err(error.into()),
        }
    }
}

/// The first run of adjacent segments that a policy wants merged.
fn due_run(segments: &[Segment], policy: RollUpPolicy) -> Option<&[Segment]> {
    small_run(segments, policy).or_else(|| {
        let is_idle = segments.iter().all(|segment| segment.created_at < policy.idle_before);
        let fits = |pair: &[Segment]| raw_bytes(pair) <= policy.raw_bytes_max;
        let start = segments.windows(2).position(|pair| is_idle && fits(pair))?;
        fitting(segments.get(start..)?, policy)
    })
}

/// As the policy says, and those after them that are small and fit in.
fn small_run(segments: &[Segment], policy: RollUpPolicy) -> Option<&[Segment]> {
    let is_small = |segment: &Segment| segment.stored_bytes < policy.small_bytes;
    let start = segments.windows(ROLL_UP_SEGMENTS_MIN).position(|run| {
        let all = raw_bytes(run);
        let first = run.first().map_or(0, |first| first.raw_bytes);
        run.iter().all(is_small) && all <= policy.raw_bytes_max && first * 2 <= all
    })?;
    let rest = segments.get(start..)?;
    let small = rest.iter().take_while(|segment| is_small(segment)).count();
    fitting(rest.get(..small)?, policy)
}

/// The first of them that fit into one.
fn fitting(segments: &[Segment], policy: RollUpPolicy) -> Option<&[Segment]> {
    let mut bytes = 0;
    let fitting = segments.iter().take_while(|segment| {
        bytes += segment.raw_bytes;
        bytes <= policy.raw_bytes_max
    });
    segments.get(..fitting.count())
}

fn raw_bytes(segments: &[Segment]) -> u64 {
    segments.iter().map(|segment| segment.raw_bytes).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Micros;
    use crate::model::{BranchId, Digest, Version};

    const POLICY: RollUpPolicy = RollUpPolicy {
        small_bytes: ROLL_UP_SMALL_BYTES,
        raw_bytes_max: ROLL_UP_RAW_BYTES_MAX,
        idle_before: Micros(100),
    };

    fn segment(stored_bytes: u64, raw_bytes: u64) -> Segment {
        Segment {
            branch: BranchId::parse("b").unwrap(),
            first_seq: Seq(1),
            last_seq: Seq(1),
            first_version: Version(1),
            last_version: Version(1),
            key: String::new(),
            sha256: Digest::default(),
            stored_bytes,
            raw_bytes,
            format: 1,
            created_at: Micros(100),
        }
    }

    #[test]
    fn a_run_is_small_adjacent_and_within_the_size_of_one_segment() {
        let small_run = |segments: &[Segment]| small_run(segments, POLICY).map(<[_]>::to_vec);
        let small = || segment(1_000, 10_000);
        let large = || segment(ROLL_UP_SMALL_BYTES, 5_000_000);
        assert_eq!(small_run(&[]), None);
        assert_eq!(small_run(&[small(), small(), small()]), None);
        assert_eq!(small_run(&[small(), large(), small(), small(), small()]), None);
        let segments = [small(), large(), small(), small(), small(), small(), large()];
        assert_eq!(small_run(&segments), Some(segments[2..6].to_vec()));
        let halves = [segment(1, ROLL_UP_RAW_BYTES_MAX / 2), segment(1, ROLL_UP_RAW_BYTES_MAX / 2)];
        assert_eq!(small_run(&[halves.clone(), halves].concat()), None);
    }

    #[test]
    fn a_first_segment_waits_for_as_much_as_it_holds() {
        let small_run = |segments: &[Segment]| small_run(segments, POLICY).map(<[_]>::to_vec);
        let sizes = |sizes: &[u64]| sizes.iter().map(|raw| segment(1_000, *raw)).collect::<Vec<_>>();
        assert_eq!(small_run(&sizes(&[40, 10, 10, 10])), None);
        let segments = sizes(&[40, 10, 10, 10, 10, 10]);
        assert_eq!(small_run(&segments), Some(segments[1..].to_vec()));
        let segments = sizes(&[40, 40, 40, 10]);
        assert_eq!(small_run(&segments), Some(segments.clone()));
        let most = ROLL_UP_RAW_BYTES_MAX;
        let segments = sizes(&[10, 10, 10, 10, most - 40, 1]);
        assert_eq!(small_run(&segments), Some(segments[..5].to_vec()));
        let segments = sizes(&[10, 10, 10, 10, most - 39, 1]);
        assert_eq!(small_run(&segments), Some(segments[..4].to_vec()));
    }

    #[test]
    fn once_a_branch_is_idle_all_that_fits_is_merged() {
        const MOST: u64 = ROLL_UP_RAW_BYTES_MAX;
        let due = |sizes: &[(u64, i64)]| {
            let segments: Vec<_> = sizes
                .iter()
                .map(|(raw, made)| Segment { created_at: Micros(*made), ..segment(9 << 20, *raw) })
                .collect();
            let run = due_run(&segments, POLICY).map(<[_]>::to_vec);
            run.map(|run| run.iter().map(|segment| segment.raw_bytes).collect::<Vec<_>>())
        };
        assert_eq!(due(&[(7, 1), (1, 99)]), Some(vec![7, 1]));
        assert_eq!(due(&[(7, 1), (1, 100)]), None);
        assert_eq!(due(&[(7, 1)]), None);
        assert_eq!(due(&[(MOST, 1), (1, 1), (MOST - 1, 1), (1, 1)]), Some(vec![1, MOST - 1]));
        assert_eq!(due(&[(MOST, 1), (1, 1), (MOST, 1)]), None);
        assert_eq!(due(&[(MOST - 3, 1), (1, 1), (1, 1), (2, 1)]), Some(vec![MOST - 3, 1, 1]));
    }
}
