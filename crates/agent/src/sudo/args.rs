//! The options of `sudo` that are in use, read as the original reads them.

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Options {
    pub(crate) user: String,
    pub(crate) group: String,
    pub(crate) keep_all: bool,
    pub(crate) keep: Vec<String>,
    pub(crate) set_home: bool,
    pub(crate) login: bool,
    pub(crate) shell: bool,
    pub(crate) list: bool,
    pub(crate) validate: bool,
    pub(crate) version: bool,
    pub(crate) help: bool,
    /// Only forgets what is never remembered.
    pub(crate) forget: bool,
    pub(crate) chdir: Option<String>,
    pub(crate) set: Vec<Vec<u8>>,
    pub(crate) command: Vec<Vec<u8>>,
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ArgsError {
    #[error("the option {0} is not supported in this sandbox")]
    Unsupported(String),
    #[error("the option {0} needs a value")]
    NoValue(String),
    #[error("a value is not text")]
    NotText,
    #[error("no command was given; try: sudo [-u user] command")]
    NoCommand,
}

/// `args` without the program's own name.
pub(crate) fn parse(args: Vec<Vec<u8>>) -> Result<Options, ArgsError> {
    let mut options = Options::default();
    let mut args = args.into_iter().peekable();
    while let Some(arg) = args.next_if(|arg| arg.len() > 1 && arg[0] == b'-') {
        if arg == b"--" {
            break;
        }
        let arg = String::from_utf8(arg).map_err(|_| ArgsError::NotText)?;
        let mut next = || -> Option<String> { String::from_utf8(args.next()?).ok() };
        if let Some(long) = arg.strip_prefix("--") {
            long_option(&mut options, long, &mut next)?;
        } else {
            short_options(&mut options, &arg[1..], &mut next)?;
        }
    }
    while let Some(var) = args.next_if(|arg| is_assignment(arg)) {
        options.set.push(var);
    }
    options.command = args.collect();
    let alone = options.list || options.validate || options.version || options.help || options.forget;
    if options.command.is_empty() && !options.login && !options.shell && !alone {
        return Err(ArgsError::NoCommand);
    }
    Ok(options)
}

fn is_assignment(arg: &[u8]) -> bool {
    let Some(equals) = arg.iter().position(|byte| *byte == b'=') else { return false };
    let name = &arg[..equals];
    name.first().is_some_and(|byte| byte.is_ascii_alphabetic() || *byte == b'_')
        && name.iter().all(|byte| byte.is_ascii_alphanumeric() || *byte == b'_')
}

fn long_option(options: &mut Options, long: &str, next: &mut dyn FnMut() -> Option<String>) -> Result<(), ArgsError> {
    let (name, inline) = match long.split_once('=') {
        Some((name, value)) => (name, Some(value.to_owned())),
        None => (long, None),
    };
    let mut value = || inline.clone().or_else(&mut *next).ok_or_else(|| ArgsError::NoValue(format!("--{name}")));
    match name {
        "user" => options.user = value()?,
        "group" => options.group = value()?,
        "chdir" => options.chdir = Some(value()?),
        "prompt" | "close-from" | "host" => drop(value()?),
        "preserve-env" => match inline {
            Some(list) => options.keep.extend(list.split(',').filter(|name| !name.is_empty()).map(str::to_owned)),
            None => options.keep_all = true,
        },
        "set-home" => options.set_home = true,
        "login" => options.login = true,
        "shell" => options.shell = true,
        "list" => options.list = true,
        "validate" => options.validate = true,
        "version" => options.version = true,
        "help" => options.help = true,
        "reset-timestamp" | "remove-timestamp" => options.forget = true,
        "non-interactive" | "stdin" | "askpass" | "bell" | "preserve-groups" => {}
        _ => return Err(ArgsError::Unsupported(format!("--{name}"))),
    }
    Ok(())
}

fn short_options(
    options: &mut Options,
    letters: &str,
    next: &mut dyn FnMut() -> Option<String>,
) -> Result<(), ArgsError> {
    for (at, letter) in letters.char_indices() {
        let rest = &letters[at + letter.len_utf8()..];
        let mut value = || {
            let inline = (!rest.is_empty()).then(|| rest.to_owned());
            inline.or_else(&mut *next).ok_or_else(|| ArgsError::NoValue(format!("-{letter}")))
        };
        match letter {
            'u' => options.user = value()?,
            'g' => options.group = value()?,
            'D' => options.chdir = Some(value()?),
            'p' | 'C' | 'h' if letter != 'h' || !rest.is_empty() => drop(value()?),
            'E' => options.keep_all = true,
            'H' => options.set_home = true,
            'i' => options.login = true,
            's' => options.shell = true,
            'l' => options.list = true,
            'v' => options.validate = true,
            'V' => options.version = true,
            'h' => options.help = true,
            'k' | 'K' => options.forget = true,
            'n' | 'S' | 'A' | 'B' | 'P' => {}
            other => return Err(ArgsError::Unsupported(format!("-{other}"))),
        }
        if matches!(letter, 'u' | 'g' | 'D' | 'p' | 'C') {
            break;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(line: &str) -> Result<Options, ArgsError> {
        parse(line.split_whitespace().map(|word| word.as_bytes().to_vec()).collect())
    }

    #[test]
    fn the_forms_in_the_wild() {
        let options = of("-nEH -u someone A=1 B=2 id -u").unwrap();
        assert_eq!((options.user.as_str(), options.keep_all, options.set_home), ("someone", true, true));
        assert_eq!(options.set, [b"A=1".to_vec(), b"B=2".to_vec()]);
        assert_eq!(options.command, [b"id".to_vec(), b"-u".to_vec()]);
        let options = of("--preserve-env=A,B --user=x -- -odd").unwrap();
        assert_eq!(
            (options.keep, options.command, options.user.as_str()),
            (vec!["A".into(), "B".into()], vec![b"-odd".to_vec()], "x")
        );
        assert_eq!(of("-uroot id").unwrap().user, "root");
        assert!(of("-i").unwrap().login);
        assert!(of("-k").unwrap().forget);
        assert_eq!(of(""), Err(ArgsError::NoCommand));
        assert_eq!(of("-n"), Err(ArgsError::NoCommand));
        assert_eq!(of("-u"), Err(ArgsError::NoValue("-u".into())));
        assert_eq!(of("-z id"), Err(ArgsError::Unsupported("-z".into())));
        assert_eq!(of("--chroot=/ id"), Err(ArgsError::Unsupported("--chroot".into())));
    }
}
