//! Histories: whatever is appended, rewound, forked, deleted, sealed and rolled
//! up in whatever order, every version is read and restored as it was made.
#![cfg(test)]
#![cfg(feature = "server")]

#[path = "support/backends.rs"]
mod backends;
#[path = "support/service.rs"]
mod service;

use backends::{Backend, on_all_backends};
use pb::WireFormat::Opaque;
use service::{Service, fresh_id, of_format, snapshot};
use std::collections::BTreeMap;
use turnkeep::entropy::Entropy;
use turnkeep::rpc::pb;

on_all_backends!(every_version_of_any_history_is_read_as_it_was_made);

const STEPS: usize = 70;

/// What a session's versions should hold.
type Versions = BTreeMap<u64, Vec<String>>;

/// The service beside what it should have.
struct Model {
    service: Service,
    seed: u64,
    choices: Entropy,
    sessions: BTreeMap<String, Versions>,
    /// Numbers everything that is persisted or made.
    made: usize,
    /// What was done, for a failure.
    steps: Vec<String>,
}

impl Model {
    fn choose(&self, below: usize) -> usize {
        usize::from(u16::from_be_bytes(self.choices.bytes())) % below
    }

    fn new_entries(&mut self) -> Vec<String> {
        let count = self.choose(4);
        self.made += 1;
        (0..count).map(|i| format!(r#"{{"made":{},"i":{i}}}"#, self.made)).collect()
    }

    fn session(&self) -> String {
        self.sessions.keys().nth(self.choose(self.sessions.len())).unwrap().clone()
    }

    /// A version of a session, with its log.
    fn version(&self, name: &str) -> (u64, Vec<String>) {
        let versions = &self.sessions[name];
        let (version, log) = versions.iter().nth(self.choose(versions.len())).unwrap();
        (*version, log.clone())
    }

    fn newest(&self, name: &str) -> (u64, Vec<String>) {
        let (version, log) = self.sessions[name].last_key_value().unwrap();
        (*version, log.clone())
    }

    fn record(&mut self, name: &str, version: u64, log: Vec<String>) {
        let versions = self.sessions.get_mut(name).unwrap();
        assert!(versions.insert(version, log).is_none(), "version {version} is new");
        assert_eq!(*versions.last_key_value().unwrap().0, version, "and the newest");
    }

    async fn step(&mut self) {
        let name = self.session();
        let step = self.choose(12);
        self.steps.push(format!("{step} {name}"));
        match step {
            0..=3 => {
                let new = self.new_entries();
                let version = self.service.append(&name, &new).await.version;
                let log = [self.newest(&name).1, new].concat();
                self.record(&name, version, log);
            }
            4 | 5 => {
                let (to, log) = self.version(&name);
                let version = self.service.rewind_to(&name, to).await.version;
                self.record(&name, version, log);
            }
            6 => {
                let log = [self.version(&name).1, self.new_entries()].concat();
                let mut list = snapshot(&name, &log);
                let Some(pb::persist_transcript_request::Input::Snapshot(input)) = &mut list.input else {
                    unreachable!()
                };
                input.allow_rewind = true;
                let version = self.service.persist(list).await.unwrap().version;
                if log == self.newest(&name).1 {
                    assert_eq!(version, self.newest(&name).0, "nothing is new");
                } else {
                    self.record(&name, version, log);
                }
            }
            7 => {
                let (version, log) = self.version(&name);
                self.made += 1;
                let fork = pb::ForkSessionRequest {
                    name,
                    version: Some(version),
                    session_id: format!("{}-{}", self.seed, self.made),
                    request_id: fresh_id(),
                    ..Default::default()
                };
                let fork = self.service.fork(fork).await.unwrap();
                let versions = Versions::from([(version, log.clone()), (fork.version, log)]);
                self.sessions.insert(fork.name, versions);
            }
            8 if self.sessions.len() > 3 => {
                self.service.delete(&name, false).await.unwrap();
                self.sessions.remove(&name);
            }
            9 => drop(self.service.seal().await),
            10 => drop(self.service.engine().roll_up_due().await.unwrap()),
            _ => drop(self.service.engine().bury().await.unwrap()),
        }
    }

    async fn check(&self) {
        for (name, versions) in &self.sessions {
            let newest = self.newest(name);
            let read = self.service.read(name).await;
            assert_eq!((read.header.version, read.payloads()), newest, "{name} {:?}", self.steps);
            assert_eq!(self.service.window(name).await.payloads(), newest.1, "{name} {:?}", self.steps);
            for (version, log) in versions {
                let read = self.service.read_at(name, *version).await.payloads();
                assert_eq!(read, *log, "{name} at {version} {:?}", self.steps);
                let window = self.service.window_at(name, *version).await.payloads();
                assert_eq!(window, *log, "{name} at {version} {:?}", self.steps);
            }
        }
    }
}

async fn every_version_of_any_history_is_read_as_it_was_made(backend: Backend) {
    for seed in 0..4 {
        let service = Service::start_with(&backend, |settings| settings.sweep.grace_seconds = 0).await;
        let name = format!("sessions/seed-{seed}");
        service.create(&format!("seed-{seed}"), of_format(Opaque)).await;
        let sessions = BTreeMap::from([(name, Versions::from([(0, vec![])]))]);
        let choices = Entropy::from_seed(seed);
        let mut model = Model { service, seed, choices, sessions, made: 0, steps: Vec::new() };
        for i in 0..STEPS {
            model.step().await;
            if i % 10 == 9 {
                model.check().await;
            }
        }
        model.service = model.service.restart().await;
        model.check().await;
        model.service.stop().await;
    }
}
