//! The arguments of a call, checked against the tool's schema: every wrong one is named at once, as routes do it.

use serde_json::{Map, Value};

use super::catalog::{Route, Tool};
use crate::error::{ApiError, Issue};

/// Arguments that fit their tool. A null was left out, unless it says something.
#[derive(Debug, Clone)]
pub(super) struct Args(Map<String, Value>);

impl Args {
    pub(super) fn read(tool: &Tool, given: Option<Map<String, Value>>) -> Result<Self, ApiError> {
        let mut given = given.unwrap_or_default();
        let mut issues = Vec::new();
        let mut kept = Map::new();
        for arg in tool.args {
            match given.remove(arg.name).filter(|value| arg.kind.takes_null() || !value.is_null()) {
                Some(value) => match arg.kind.refuse(&value) {
                    Some(why) => issues.push(Issue::new(arg.name, why)),
                    None => drop(kept.insert(arg.name.to_owned(), value)),
                },
                None if arg.required => issues.push(Issue::new(arg.name, "is required")),
                None => {}
            }
        }
        issues.extend(given.keys().map(|name| Issue::new(cut(name), "is not an argument of this tool")));
        if issues.is_empty() {
            return Ok(Self(kept));
        }
        let names: Vec<&str> = tool.args.iter().map(|arg| arg.name).collect();
        Err(ApiError::invalid(issues).hint(format!("{} takes: {}.", tool.name, names.join(", "))))
    }

    pub(super) fn text(&self, name: &str) -> Option<&str> {
        self.0.get(name)?.as_str()
    }

    pub(super) fn number(&self, name: &str) -> Option<u64> {
        self.0.get(name)?.as_u64()
    }

    pub(super) fn flag(&self, name: &str) -> Option<bool> {
        self.0.get(name)?.as_bool()
    }

    pub(super) fn get(&self, name: &str) -> Option<&Value> {
        self.0.get(name)
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// Without those that are the tool's own and no field of a route.
    pub(super) fn without(&self, names: &[&str]) -> Map<String, Value> {
        self.0.iter().filter(|(name, _)| !names.contains(&name.as_str())).map(|(n, v)| (n.clone(), v.clone())).collect()
    }

    /// A path that a model may write below the workspace.
    pub(super) fn path(&self) -> String {
        workspace(self.text("path").unwrap_or("."))
    }

    /// What an action takes, and nothing else.
    pub(super) fn fit_action(&self, action: &str, route: &Route) -> Result<(), ApiError> {
        let in_path: Vec<&str> = route.path.split(['{', '}']).skip(1).step_by(2).collect();
        let mut issues = Vec::new();
        for name in self.0.keys() {
            let known = ["action", "idempotencyKey"].contains(&name.as_str())
                || in_path.contains(&name.as_str())
                || route.fields.iter().any(|(arg, _)| arg == name);
            if !known {
                issues.push(Issue::new(name, format!("is not taken by the action {action}")));
            }
        }
        for name in &in_path {
            if !self.has(name) {
                issues.push(Issue::new(*name, format!("is required by the action {action}")));
            }
        }
        if issues.is_empty() {
            return Ok(());
        }
        let takes: Vec<&str> =
            in_path.iter().copied().chain(route.fields.iter().map(|(arg, _)| *arg)).filter(|n| !n.is_empty()).collect();
        let takes = if takes.is_empty() { "nothing more".to_owned() } else { takes.join(", ") };
        Err(ApiError::invalid(issues).hint(format!("The action {action} takes: {takes}.")))
    }
}

/// A name that came from outside, short enough to be told back.
fn cut(name: &str) -> String {
    name.chars().take(64).collect()
}

/// Relative paths are below the workspace. What it leads to is the sandbox's own affair.
pub(super) fn workspace(path: &str) -> String {
    if path.starts_with('/') {
        return path.to_owned();
    }
    let rest = path.trim_start_matches("./");
    match rest {
        "" | "." => "/workspace".to_owned(),
        rest => format!("/workspace/{rest}"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::catalog::{Work, find};
    use super::*;
    use serde_json::json;

    fn read(name: &str, given: Value) -> Result<Args, ApiError> {
        Args::read(find(name).expect("a tool"), given.as_object().cloned())
    }

    #[test]
    fn every_wrong_argument_is_named_at_once() {
        let error = read("runtime_sandboxes_exec", json!({"command": 1, "timeoutMs": 0, "shell": "zsh"}))
            .expect_err("four are wrong");
        let error = error.to_json("req_x");
        let named: Vec<&str> =
            error["details"]["issues"].as_array().unwrap().iter().map(|i| i["path"].as_str().unwrap()).collect();
        assert_eq!(named, ["id", "command", "timeoutMs", "shell"]);
        assert!(error["hint"].as_str().unwrap().contains("command, argv, cwd"), "{error}");
    }

    #[test]
    fn null_is_left_out_unless_it_says_something() {
        let args =
            read("runtime_sandboxes_manage", json!({"id": "x", "action": "retention", "days": null, "name": null}))
                .expect("arguments");
        assert!(args.has("days") && !args.has("name"));
    }

    #[test]
    fn an_action_takes_its_own_arguments_only() {
        let args =
            read("runtime_sandboxes_process", json!({"id": "x", "action": "read", "signal": "SIGTERM"})).unwrap();
        let Work::Actions(actions) = &find("runtime_sandboxes_process").unwrap().work else { panic!("actions") };
        let (action, route) = actions.iter().find(|(action, _)| *action == "read").unwrap();
        let error = args.fit_action(action, route).expect_err("two are wrong").to_json("req_x");
        assert_eq!(error["details"]["issues"].as_array().unwrap().len(), 2, "{error}");
        assert_eq!(error["hint"], "The action read takes: id, processId, cursor, waitMs.");
    }

    #[test]
    fn relative_paths_are_below_the_workspace() {
        for (given, path) in [(".", "/workspace"), ("a/b", "/workspace/a/b"), ("./a", "/workspace/a"), ("/etc", "/etc")]
        {
            assert_eq!(workspace(given), path);
        }
    }
}
