//! What the system says of a process.

#![allow(dead_code, reason = "each benchmark uses its part of it")]

use anyhow::Context as _;
use std::fs;
use std::time::Duration;

/// Clock ticks of a second in `/proc`, which Linux fixes on all that it runs on
/// today: see `sysconf(_SC_CLK_TCK)` in `proc_pid_stat(5)`.
const TICKS: u32 = 100;

/// Processor time that a process has used, of users and of the system.
pub(crate) fn cpu(id: u32) -> anyhow::Result<Duration> {
    let stat = fs::read_to_string(format!("/proc/{id}/stat"))?;
    // The name stands in parentheses and may hold anything.
    let (_, fields) = stat.rsplit_once(')').context("a name in parentheses")?;
    let ticks = fields.split_whitespace().skip(11).take(2).map(str::parse::<u32>);
    let ticks: u32 = ticks.sum::<Result<_, _>>()?;
    Ok(Duration::from_secs(1) * ticks / TICKS)
}

/// Bytes that a process has caused to be written to disks.
pub(crate) fn written_bytes(id: u32) -> anyhow::Result<u64> {
    let io = fs::read_to_string(format!("/proc/{id}/io"))?;
    let bytes = io.lines().find_map(|line| line.strip_prefix("write_bytes: ")).context("write_bytes")?;
    Ok(bytes.parse()?)
}

/// A figure of the memory of a process, such as `VmHWM`, in KiB.
pub(crate) fn memory_kib(id: u32, name: &str) -> anyhow::Result<u64> {
    let status = fs::read_to_string(format!("/proc/{id}/status"))?;
    let line = status.lines().find(|line| line.starts_with(name)).context("a line of that name")?;
    Ok(line.split_whitespace().nth(1).context("a figure")?.parse()?)
}
