//! Nothing a sandbox says floods a model: what is too long is cut, and says so.

use std::collections::VecDeque;

use serde_json::{Value, json};

/// Characters of one stream of a command's output.
pub(super) const OUTPUT: usize = 16_000;
/// Characters of a file.
pub(super) const CONTENT: usize = 64_000;
/// Bytes of a list's JSON.
const LIST: usize = 64_000;

/// The beginning and the end of a text that arrives in pieces; the end says most.
#[derive(Debug)]
pub(super) struct Ends {
    head: String,
    head_left: usize,
    tail: VecDeque<char>,
    left_out: usize,
}

impl Default for Ends {
    fn default() -> Self {
        Self { head: String::new(), head_left: OUTPUT / 2, tail: VecDeque::new(), left_out: 0 }
    }
}

impl Ends {
    pub(super) fn push(&mut self, piece: &str) {
        let mut chars = piece.chars();
        if self.head_left > 0 {
            for c in chars.by_ref().take(self.head_left) {
                self.head.push(c);
                self.head_left -= 1;
            }
        }
        for c in chars {
            if self.tail.len() == OUTPUT - OUTPUT / 2 {
                self.tail.pop_front();
                self.left_out += 1;
            }
            self.tail.push_back(c);
        }
    }

    pub(super) fn is_cut(&self) -> bool {
        self.left_out > 0
    }

    pub(super) fn text(self) -> String {
        let Self { mut head, tail, left_out, .. } = self;
        if left_out > 0 {
            head.push_str(&format!("\n[… {left_out} characters left out …]\n"));
        }
        head.extend(tail);
        head
    }
}

/// A poll of a process's output as two texts. What is cut off is read with the cursor that is told.
pub(super) fn output(poll: &Value) -> Value {
    let mut texts = [String::new(), String::new()];
    let mut left = OUTPUT;
    let mut next = poll["nextCursor"].clone();
    let mut cut = false;
    for chunk in poll["chunks"].as_array().into_iter().flatten() {
        let text = chunk["text"].as_str().unwrap_or_default();
        let offset = chunk["offset"].as_u64().unwrap_or_default();
        let into = &mut texts[usize::from(chunk["stream"] == "stderr")];
        let count = text.chars().count();
        if count <= left {
            into.push_str(text);
            left -= count;
            continue;
        }
        cut = true;
        let end = text.char_indices().nth(left).map_or(text.len(), |(at, _)| at);
        // Bytes that are not text have another length than what stands for them: such a piece is shown whole or not.
        if chunk["base64"].is_null() {
            into.push_str(&text[..end]);
            next = json!(offset + end as u64);
        } else if left == OUTPUT {
            into.push_str(&text[..end]);
            let bytes = chunk["base64"].as_str().map_or(0, base64_length);
            next = json!(offset + bytes);
        } else {
            next = json!(offset);
        }
        break;
    }
    let [stdout, stderr] = texts;
    let mut answer =
        json!({ "stdout": stdout, "stderr": stderr, "nextCursor": next, "process": poll["process"].clone() });
    if cut {
        answer["outputCut"] = json!(true);
    }
    answer
}

fn base64_length(text: &str) -> u64 {
    let padding = text.bytes().rev().take_while(|byte| *byte == b'=').count();
    ((text.len() / 4 * 3).saturating_sub(padding)) as u64
}

/// The records of a list that fit.
pub(super) fn list(mut answer: Value) -> Value {
    let Some(data) = answer.get_mut("data").and_then(Value::as_array_mut) else { return answer };
    let mut left = LIST;
    let fit = data
        .iter()
        .take_while(|item| {
            let length = item.to_string().len();
            let fits = length <= left;
            left = left.saturating_sub(length);
            fits
        })
        .count();
    let left_out = data.len() - fit;
    if left_out > 0 {
        data.truncate(fit);
        answer["outputCut"] = json!(true);
        answer["leftOut"] = json!(left_out);
    }
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_keeps_its_ends() {
        let mut ends = Ends::default();
        for n in 0..40_000 {
            ends.push(&format!("{n}\n"));
        }
        assert!(ends.is_cut());
        let text = ends.text();
        assert!(text.starts_with("0\n1\n2\n") && text.ends_with("39998\n39999\n"), "{}", &text[..64]);
        assert!(text.contains("characters left out"));
        assert!(text.chars().count() < OUTPUT + 64);
        let mut short = Ends::default();
        short.push(&"ü".repeat(OUTPUT));
        assert!(!short.is_cut());
        assert_eq!(short.text(), "ü".repeat(OUTPUT));
    }

    #[test]
    fn a_poll_goes_on_where_it_was_cut() {
        let chunk = |stream: &str, text: String, offset: u64| json!({"stream": stream, "text": text, "offset": offset});
        let poll = json!({"chunks": [chunk("stdout", "ü".repeat(10_000), 0), chunk("stderr", "e".repeat(10_000), 20_000)],
            "nextCursor": 30_000, "process": {"id": "p"}});
        let cut = output(&poll);
        assert_eq!(cut["stdout"].as_str().unwrap().chars().count(), 10_000);
        assert_eq!(cut["stderr"].as_str().unwrap().len(), 6_000);
        assert_eq!((cut["nextCursor"].as_u64(), &cut["outputCut"]), (Some(26_000), &json!(true)));
        let whole = output(&json!({"chunks": [chunk("stdout", "a".into(), 0)], "nextCursor": 1, "process": {}}));
        assert_eq!((whole["nextCursor"].as_u64(), whole.get("outputCut")), (Some(1), None));
        let bytes = json!({"chunks": [{"stream": "stdout", "text": "\u{fffd}".repeat(20_000), "offset": 5, "base64": "AAAA"}],
            "nextCursor": 8, "process": {}});
        assert_eq!(output(&bytes)["nextCursor"], 8, "no circle");
    }

    #[test]
    fn a_long_list_says_how_much_it_leaves_out() {
        let answer = list(json!({"data": vec!["x".repeat(1000); 100], "nextCursor": null}));
        assert_eq!(answer["data"].as_array().unwrap().len() + answer["leftOut"].as_u64().unwrap() as usize, 100);
        assert_eq!(answer["outputCut"], true);
        assert_eq!(list(json!({"data": [1]})), json!({"data": [1]}));
    }
}
