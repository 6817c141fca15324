//! What a client was told, to be held against a server that was killed in between.
//!
//! Each sandbox is worked on by one worker at a time, so that of its story only the last step can be open: sent, and
//! never answered. Everything before it was acknowledged and must hold; the open step may have happened or not, but not
//! twice.

use runtime_test_kit::{Answer, Api, Dice, Machine, unique};
use serde_json::{Value, json};
use std::sync::atomic::{AtomicBool, Ordering};

/// The story of one sandbox.
#[derive(Debug, Clone)]
pub struct Story {
    fields: Value,
    create_key: String,
    id: Option<String>,
    /// What the file must hold, by the last answer.
    file: Option<String>,
    /// What an unanswered write would have made of it.
    file_open: Option<String>,
    /// Lines whose command was answered.
    lines: Vec<String>,
    /// A command that was sent and not answered: its line, key and body.
    exec_open: Option<(String, String, Value)>,
    /// A stop or restart was sent; the state may be either.
    moved: bool,
    deleting: bool,
    deleted: bool,
}

#[derive(Debug, Default)]
pub struct Ledger {
    stories: Vec<Story>,
    gone: Vec<String>,
    creates: u64,
    writes: u64,
    execs: u64,
    deletes: u64,
    open: u64,
}

/// Works on its own sandboxes until it is told to stop or the server is gone.
pub struct Worker {
    api: Api,
    dice: Dice,
    stories: Vec<Story>,
}

impl Ledger {
    /// Some of the living stories, for one worker.
    pub fn hand_out(&mut self, dice: &mut Dice) -> Vec<Story> {
        let mut given = Vec::new();
        while given.len() < 2 && !self.stories.is_empty() {
            let index = usize::try_from(dice.below(self.stories.len() as u64)).expect("an index");
            given.push(self.stories.swap_remove(index));
        }
        given
    }

    pub fn take_back(&mut self, stories: Vec<Story>) {
        self.stories.extend(stories);
    }

    /// The ids of sandboxes whose deletion was acknowledged.
    pub fn gone(&self) -> Vec<String> {
        self.gone.clone()
    }

    pub fn figures(&self) -> String {
        format!(
            "acknowledged: {} creates, {} writes, {} execs, {} deletes; {} were open at a kill",
            self.creates, self.writes, self.execs, self.deletes, self.open
        )
    }

    /// Holds every story against the server and closes what was open.
    pub fn verify(&mut self, api: &Api) {
        let stories = std::mem::take(&mut self.stories);
        for mut story in stories {
            self.verify_one(api, &mut story);
            if let (true, Some(id)) = (story.deleted, story.id.clone()) {
                self.gone.push(id);
            } else if story.id.is_some() {
                self.stories.push(story);
            }
        }
    }

    fn verify_one(&mut self, api: &Api, story: &mut Story) {
        let Some(id) = story.id.clone() else { return self.close_create(api, story) };
        let machine = Machine { api: api.clone(), id };
        let seen = api.get(&machine.path(""));
        if story.deleted {
            let _ = seen.refused(404, "not_found");
            return;
        }
        if story.deleting {
            self.open += 1;
            machine.delete();
            story.deleted = true;
            return;
        }
        let info = seen.ok();
        assert_eq!(info["name"], story.fields["name"], "{info}");
        if !story.moved {
            assert_eq!(info["state"], "running", "nobody stopped it: {info}\n{story:?}");
        }
        if info["state"] != "running" {
            assert_eq!(machine.verb(":restart")["state"], "running", "it does not start again\n{story:?}");
        }
        story.moved = false;
        self.close_exec(&machine, story);
        self.compare(&machine, story);
    }

    /// A create that was never answered: asked again with the same key it gives one sandbox, and only one.
    fn close_create(&mut self, api: &Api, story: &mut Story) {
        self.open += 1;
        let head = [("Idempotency-Key", story.create_key.as_str()), ("Prefer", "wait=60")];
        let made = api.post_with("/v1/sandboxes", &head, &story.fields).ok();
        let name = story.fields["name"].as_str().expect("a name");
        let named = api.get(&format!("/v1/sandboxes?includeStopped=true&name={name}")).ok();
        assert_eq!(named["data"].as_array().map(Vec::len), Some(1), "{named}");
        assert_eq!(named["data"][0]["id"], made["id"]);
        let cut_short = made["state"] == "stopped" && made["stopReason"] == "startup_failed";
        assert!(made["state"] == "running" || cut_short, "{made}");
        story.id = made["id"].as_str().map(str::to_owned);
        story.moved = cut_short;
        if cut_short {
            story.deleting = true;
        }
    }

    /// The same command with the same key: it attaches, or gives the result, or runs now; once in all.
    fn close_exec(&mut self, machine: &Machine, story: &mut Story) {
        let Some((line, key, body)) = story.exec_open.take() else { return };
        self.open += 1;
        let answer = machine.api.post_with(&machine.path(":exec"), &[("Idempotency-Key", &key)], &body);
        assert_eq!(answer.ok()["exitCode"], 0, "{}", answer.text());
        story.lines.push(line);
    }

    fn compare(&mut self, machine: &Machine, story: &mut Story) {
        if story.file.is_some() || story.file_open.is_some() {
            let read = machine.try_read("/workspace/file");
            let now = (read.status == 200).then(|| String::from_utf8_lossy(&read.body).into_owned());
            let open = story.file_open.take();
            assert!(now == story.file || (open.is_some() && now == open), "{now:?} was read\n{story:?}, open {open:?}");
            story.file = now;
        }
        if !story.lines.is_empty() {
            let log = String::from_utf8(machine.read("/workspace/log")).expect("lines");
            let found: Vec<&str> = log.lines().collect();
            assert_eq!(found, story.lines, "each command ran once and in order\n{story:?}");
        }
    }
}

impl Worker {
    pub fn new(api: Api, dice: Dice, stories: Vec<Story>) -> Self {
        Self { api, dice, stories }
    }

    /// Until the first call that gets no answer: what it was is then left open in its story.
    pub fn work(mut self, stop: &AtomicBool) -> Vec<Story> {
        while !stop.load(Ordering::Relaxed) {
            let alive: Vec<usize> = (0..self.stories.len()).filter(|&n| !self.stories[n].deleted).collect();
            let went_on = if alive.len() < 2 {
                self.create()
            } else {
                let index = alive[usize::try_from(self.dice.below(alive.len() as u64)).expect("an index")];
                match self.dice.below(10) {
                    0..4 => self.write(index),
                    4..8 => self.exec(index),
                    8 => self.stop_and_restart(index),
                    _ => self.delete(index),
                }
            };
            if !went_on {
                break;
            }
        }
        self.stories
    }

    /// The answer, or nothing when the server is gone.
    fn call(&self, method: &str, path: &str, head: &[(&str, &str)], body: &[u8], kind: &str) -> Option<Answer> {
        let answer = self.api.try_call(method, path, head, Some((kind, body))).ok()?;
        assert!(answer.status < 500, "{method} {path}: {} {}", answer.status, answer.text());
        Some(answer)
    }

    fn post(&self, path: &str, key: &str, body: &Value) -> Option<Answer> {
        let head = [("Idempotency-Key", key), ("Prefer", "wait=60")];
        self.call("POST", path, &head, body.to_string().as_bytes(), "application/json")
    }

    fn path(&self, index: usize, rest: &str) -> String {
        format!("/v1/sandboxes/{}{rest}", self.stories[index].id.as_deref().expect("a story with an id"))
    }

    fn create(&mut self) -> bool {
        let story = Story {
            fields: json!({"name": unique("s"), "vcpu": 1, "memoryMiB": 256}),
            create_key: unique("create"),
            id: None,
            file: None,
            file_open: None,
            lines: Vec::new(),
            exec_open: None,
            moved: false,
            deleting: false,
            deleted: false,
        };
        let answer = self.post("/v1/sandboxes", &story.create_key, &story.fields);
        self.stories.push(story);
        let Some(answer) = answer else { return false };
        let made = answer.ok();
        let story = self.stories.last_mut().expect("the new one");
        story.id = made["id"].as_str().map(str::to_owned);
        true
    }

    fn write(&mut self, index: usize) -> bool {
        let content = unique("content").repeat(1 + usize::try_from(self.dice.below(500)).expect("a size"));
        self.stories[index].file_open = Some(content.clone());
        let path = self.path(index, "/files/content?path=/workspace/file");
        let Some(answer) = self.call("PUT", &path, &[], content.as_bytes(), "application/octet-stream") else {
            return false;
        };
        let _ = answer.ok();
        self.stories[index].file = self.stories[index].file_open.take();
        true
    }

    fn exec(&mut self, index: usize) -> bool {
        let line = unique("line");
        let key = unique("exec");
        let body = json!({"command": format!("echo {line} >> log")});
        self.stories[index].exec_open = Some((line.clone(), key.clone(), body.clone()));
        let Some(answer) = self.post(&self.path(index, ":exec"), &key, &body) else { return false };
        assert_eq!(answer.ok()["exitCode"], 0, "{}", answer.text());
        self.stories[index].exec_open = None;
        self.stories[index].lines.push(line);
        true
    }

    fn stop_and_restart(&mut self, index: usize) -> bool {
        self.stories[index].moved = true;
        for verb in [":stop", ":restart"] {
            let Some(answer) = self.post(&self.path(index, verb), &unique("verb"), &json!({})) else { return false };
            let _ = answer.ok();
        }
        self.stories[index].moved = false;
        true
    }

    fn delete(&mut self, index: usize) -> bool {
        self.stories[index].deleting = true;
        let Some(answer) = self.call("DELETE", &self.path(index, ""), &[], b"", "application/json") else {
            return false;
        };
        assert_eq!(answer.ok()["status"], "deleted");
        self.stories[index].deleted = true;
        true
    }
}
