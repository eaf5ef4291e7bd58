//! Processes that end anywhere: what was acknowledged is there afterwards, and
//! what was not can be repeated without doing it twice.
#![cfg(test)]
#![cfg(feature = "server")]

#[path = "support/checker.rs"]
mod checker;
#[path = "support/messages.rs"]
mod messages;
#[path = "support/stores.rs"]
mod stores;

#[path = "crash/gaps.rs"]
mod gaps;
#[path = "crash/process.rs"]
mod process;
#[path = "crash/windows.rs"]
mod windows;
#[path = "crash/workers.rs"]
mod workers;

use process::{Place, Process, fsck};
use stores::Database;
use workers::Workers;

/// How often the process is killed.
const ROUNDS: usize = 5;

/// Picks from what a seed gives: the same for the same seed.
#[derive(Clone, Debug)]
pub(crate) struct Dice(u64);

impl Dice {
    /// The seed of `TURNKEEP_TEST_SEED`, or else another each time. It is printed
    /// when the test fails.
    fn new() -> Self {
        let given = std::env::var("TURNKEEP_TEST_SEED").ok().and_then(|seed| seed.parse().ok());
        let seed = given.unwrap_or_else(|| u64::from_be_bytes(turnkeep::entropy::Entropy::from_os().bytes()));
        println!("TURNKEEP_TEST_SEED={seed}");
        Self(seed | 1)
    }

    /// A number below `end`.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) % end
    }

    /// Dice of its own for somebody.
    pub(crate) fn fork(&mut self, whose: u64) -> Self {
        Self((self.0 ^ whose.wrapping_mul(0x9e37_79b9_7f4a_7c15)) | 1)
    }
}

/// Kills a service again and again while workers write, delete and fork.
async fn kill_again_and_again(place: Place, database: &Database) {
    let mut dice = Dice::new();
    let mut process = Process::start(&place).await;
    let workers = Workers::start(process.address.clone(), &mut dice);
    for _ in 0..ROUNDS {
        workers.wait_for(5 + dice.below(60)).await;
        turnkeep::clock::sleep(std::time::Duration::from_micros(dice.below(20_000))).await;
        process.kill();
        // The next process's sweep need not wait for the lease of this one.
        database.execute("UPDATE writer_generation SET lease_until = 0").await;
        process = Process::start(&place).await;
        workers::check_window(&process.address).await;
        workers.moved_to(process.address.clone());
    }
    workers.wait_for(20).await;
    let told = workers.stop().await;
    assert!(told.interrupted > 0, "no request was cut off");
    process.kill();
    fsck(&place);
    let process = Process::start(&place).await;
    told.verify(&process.address).await;
    // It ends in order as well.
    process.terminate();
    fsck(&place);
}

mod heavy {
    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_service_on_sqlite_and_a_directory_that_is_killed_loses_and_doubles_nothing() {
        let data = tempfile::tempdir().unwrap();
        let database = Database::sqlite_at(&data.path().join("turnkeep.db")).await;
        kill_again_and_again(Place::local(data.path()), &database).await;
    }

    #[cfg(feature = "s3")]
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_service_on_postgres_and_s3_that_is_killed_loses_and_doubles_nothing() {
        let (Some(database), Some(_)) = (Database::postgres().await, crate::stores::s3().await) else {
            return;
        };
        let place = Place::remote(database.url().unwrap(), &format!("{}/", crate::stores::unique("crash")));
        kill_again_and_again(place, &database).await;
    }
}
