//! `turnkeep output`.

mod tools;

use super::Remote;
use super::output::{Listing, Shown, bytes, harmless, hex, paged, print, print_json, progress, say, time};
use super::resource_name;
use crate::client::{Client, ClientError};
use crate::rpc::pb;
use clap::{Args, Subcommand};
use pb::read_tool_output_request::{LineRange, Part as Wanted, Search};
use pb::read_tool_output_response::{End, Line, Part};
use std::fs::File;
use std::io::Write as _;
use std::path::PathBuf;
use tonic::Streaming;

/// List, show, search and download tool outputs.
#[derive(Debug, Subcommand)]
pub(super) enum ToolOutput {
    /// List the tool outputs of a session, the newest first
    List(List),
    /// Print lines of a tool output
    Show(Show),
    /// Print the lines of a tool output that match a pattern
    Grep(Grep),
    /// Write a tool output to a file
    Download(Download),
    Tools(tools::Tools),
}

impl ToolOutput {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        match self {
            Self::List(list) => list.run().await,
            Self::Show(show) => show.run().await,
            Self::Grep(grep) => grep.run().await,
            Self::Download(download) => download.run().await,
            Self::Tools(tools) => tools.run(),
        }
    }
}

#[derive(Debug, Args)]
pub(super) struct List {
    #[command(flatten)]
    remote: Remote,
    /// The session
    session: String,
    /// At most so many; all if 0
    #[arg(long, default_value_t = 100)]
    limit: usize,
}

impl List {
    async fn run(self) -> anyhow::Result<()> {
        const PAGE: usize = 1_000;
        let mut client = self.remote.connect().await?;
        let parent = resource_name(&self.session);
        let page = async |page_size, page_token| {
            let request = pb::ListToolOutputsRequest { parent: parent.clone(), page_size, page_token };
            let page = client.outputs.list_tool_outputs(request).await?.into_inner();
            Ok((page.outputs, page.next_page_token))
        };
        let mut list = Listing::new(&self.remote, &["output", "tool", "bytes", "lines", "stored", "kept"]);
        let next = paged(self.limit, PAGE, String::new(), page, |output| {
            list.add(&output, json, |output| {
                vec![
                    output.name.clone(),
                    output.tool_name.clone(),
                    output.bytes.to_string(),
                    output.lines.to_string(),
                    bytes(output.stored_bytes),
                    time(output.create_time.as_ref()),
                ]
            })
        });
        let next = next.await?;
        list.end()?;
        if !next.is_empty() {
            say("there are more: --limit 0 lists all");
        }
        Ok(())
    }
}

fn json(output: &pb::ToolOutput) -> serde_json::Value {
    serde_json::json!({
        "name": output.name,
        "ref": output.r#ref,
        "tool_call_id": output.tool_call_id,
        "tool_name": output.tool_name,
        "content_type": output.content_type,
        "bytes": output.bytes,
        "characters": output.characters,
        "lines": output.lines,
        "sha256": hex(&output.sha256),
        "stored_bytes": output.stored_bytes,
        "create_time": time(output.create_time.as_ref()),
    })
}

#[derive(Debug, Args)]
pub(super) struct Show {
    #[command(flatten)]
    remote: Remote,
    /// Name or ref of the tool output
    output: String,
    /// Only these lines, such as 5000:5200, 5000: or -20: for the last twenty
    #[arg(long, value_name = "FIRST:LAST", value_parser = parse_lines, allow_hyphen_values = true)]
    lines: Option<LineRange>,
    /// Only lines that match this regular expression, with their numbers; `grep` has
    /// more options
    #[arg(long, value_name = "PATTERN", conflicts_with = "lines")]
    grep: Option<String>,
}

/// `FIRST:LAST`, both included; what is left out is the first or last line.
fn parse_lines(text: &str) -> Result<LineRange, String> {
    let (first, last) = text.split_once(':').ok_or("must be FIRST:LAST")?;
    let number = |text: &str, default| match text {
        "" => Ok(default),
        text => text.parse::<i64>().map_err(|error| error.to_string()),
    };
    let start = number(first, 1)?;
    if start == 0 {
        return Err("lines are counted from 1".to_owned());
    }
    let last = if last.is_empty() { None } else { Some(number(last, 0)?) };
    let count = match last {
        None => None,
        Some(last) if (start < 0) == (last < 0) && last != 0 => {
            Some(last.checked_sub(start).map_or(0, |lines| lines.saturating_add(1)).try_into().unwrap_or(0))
        }
        Some(_) => return Err("both lines must be counted from the same end".to_owned()),
    };
    Ok(LineRange { start, count })
}

impl Show {
    async fn run(self) -> anyhow::Result<()> {
        if let Some(pattern) = self.grep {
            return Grep::all(self.remote, self.output, pattern).run().await;
        }
        let mut client = self.remote.connect().await?;
        let part = self.lines.map(Wanted::Lines);
        let (output, mut parts) = read(&mut client, self.output, part).await?;
        if self.remote.json {
            print_json(&json(&output))?;
        }
        let mut shown = Shown::to_stdout();
        while let Some(part) = next(&mut parts).await? {
            if let Part::Content(content) = part {
                shown.write(&content.data)?;
            }
        }
        shown.finish()
    }
}

#[derive(Debug, Args)]
pub(super) struct Grep {
    #[command(flatten)]
    remote: Remote,
    /// Name or ref of the tool output
    output: String,
    /// A regular expression
    pattern: String,
    /// The pattern is a text
    #[arg(long, short = 'F')]
    fixed_strings: bool,
    /// Upper and lower case are one
    #[arg(long, short)]
    ignore_case: bool,
    /// Lines before and after each match
    #[arg(long, short = 'C', default_value_t = 0)]
    context: u32,
    /// At most so many matching lines
    #[arg(long, short, default_value_t = Self::LINES)]
    max_count: u32,
}

impl Grep {
    const LINES: u32 = 10_000;

    /// All matches of a regular expression, as far as they are printed by default.
    fn all(remote: Remote, output: String, pattern: String) -> Self {
        Self {
            remote,
            output,
            pattern,
            fixed_strings: false,
            ignore_case: false,
            context: 0,
            max_count: Self::LINES,
        }
    }

    async fn run(self) -> anyhow::Result<()> {
        let mut client = self.remote.connect().await?;
        let search = Search {
            pattern: self.pattern,
            is_regex: !self.fixed_strings,
            ignore_case: self.ignore_case,
            context_lines: self.context,
            matches_max: self.max_count,
            first_line: 0,
        };
        let (_, mut parts) = read(&mut client, self.output, Some(Wanted::Search(search))).await?;
        while let Some(part) = next(&mut parts).await? {
            match part {
                Part::Lines(lines) => {
                    lines.lines.iter().try_for_each(|line| print_line(line, self.remote.json))?;
                }
                Part::End(End { is_complete: false, .. }) => say("there may be more: --max-count"),
                _ => {}
            }
        }
        Ok(())
    }
}

fn print_line(line: &Line, is_json: bool) -> anyhow::Result<()> {
    let text = String::from_utf8_lossy(&line.text);
    if is_json {
        return print_json(&serde_json::json!({
            "line": line.line, "first_byte": line.first_byte, "text": text, "is_match": line.is_match,
            "is_cut": line.is_cut,
        }));
    }
    let mark = if line.is_match { ':' } else { '-' };
    let cut = if line.is_cut { " …" } else { "" };
    print(&format!("{}{mark}{}{cut}", line.line, harmless(&text)))
}

#[derive(Debug, Args)]
pub(super) struct Download {
    #[command(flatten)]
    remote: Remote,
    /// Name or ref of the tool output
    output: String,
    /// The file, which must not be there yet
    file: PathBuf,
    /// Only these lines, such as 5000:5200, 5000: or -20: for the last twenty
    #[arg(long, value_name = "FIRST:LAST", value_parser = parse_lines, allow_hyphen_values = true)]
    lines: Option<LineRange>,
}

impl Download {
    async fn run(self) -> anyhow::Result<()> {
        let mut client = self.remote.connect().await?;
        anyhow::ensure!(!self.file.try_exists()?, "{} exists", self.file.display());
        let (output, mut parts) = read(&mut client, self.output, self.lines.map(Wanted::Lines)).await?;
        // What breaks off leaves nothing under the name of the whole.
        let mut partial = self.file.clone().into_os_string();
        partial.push(".part");
        let mut file = File::create(&partial)?;
        let is_whole = self.lines.is_none();
        let bar = progress(is_whole.then_some(output.bytes), "bytes");
        let mut written = 0;
        while let Some(part) = next(&mut parts).await? {
            if let Part::Content(content) = part {
                file.write_all(&content.data)?;
                written += content.data.len() as u64;
                bar.set_position(written);
            }
        }
        bar.finish_and_clear();
        if is_whole && written != output.bytes {
            return Err(ClientError::Contract("an output has as many bytes as it says").into());
        }
        file.sync_all()?;
        std::fs::rename(&partial, &self.file)?;
        if self.remote.json {
            return print_json(&json(&output));
        }
        say(&format!("{} in {}", bytes(written), self.file.display()));
        Ok(())
    }
}

/// Begins to read a part of an output, all of it.
async fn read(
    client: &mut Client,
    name: String,
    part: Option<Wanted>,
) -> anyhow::Result<(pb::ToolOutput, Streaming<pb::ReadToolOutputResponse>)> {
    let request = pb::ReadToolOutputRequest { name, part, page_bytes: None, unlimited: true };
    let mut parts = client.outputs.read_tool_output(request).await?.into_inner();
    match next(&mut parts).await? {
        Some(Part::Output(output)) => Ok((output, parts)),
        _ => Err(ClientError::Contract("a read begins with the output").into()),
    }
}

async fn next(parts: &mut Streaming<pb::ReadToolOutputResponse>) -> anyhow::Result<Option<Part>> {
    Ok(parts.message().await?.and_then(|message| message.part))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_named_by_the_first_and_the_last() {
        let range = |start, count| Ok(LineRange { start, count });
        assert_eq!(parse_lines("5000:5200"), range(5_000, Some(201)));
        assert_eq!(parse_lines("7:7"), range(7, Some(1)));
        assert_eq!(parse_lines("7:"), range(7, None));
        assert_eq!(parse_lines(":7"), range(1, Some(7)));
        assert_eq!(parse_lines("-20:"), range(-20, None));
        assert_eq!(parse_lines("-20:-11"), range(-20, Some(10)));
        assert_eq!(parse_lines("9:3"), range(9, Some(0)));
        for wrong in ["", "7", "0:3", "x:1", "1:-1", "-3:3", "1:0"] {
            parse_lines(wrong).unwrap_err();
        }
    }
}
