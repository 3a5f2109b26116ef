//! The errors of cel-go's parser, which ANTLR generates: the same tokens are read by the same rules with ANTLR's strategy of
//! recovery (a token too many is dropped, a missing one is supplied, otherwise tokens are skipped until one fits a rule under
//! way), and each error lists the tokens that ANTLR would have expected.
//!
//! Functions are rules of the grammar (`cel-go/parser/gen/CEL.g4`). Left out: a tree; what the rules match is valid only now and then.

use super::lex::Tokens;
use super::token::{Kind as T, Set, Token};
use super::{DEPTH_LIMIT, literal, names};
use crate::source::Found;
use std::collections::BTreeSet;

/// Syntax errors that are reported before the parser gives up.
const REPORTED: usize = 100;
/// How often it recovers.
const RECOVERIES: usize = 30;
/// How many tokens it skips each time.
const SKIPPED: usize = 256;

const EXPR: Set = MEMBER.or(Set::new(&[T::Not]));
const MEMBER: Set = LITERAL.or(Set::new(&[T::LeftBracket, T::LeftBrace, T::LeftParen, T::Dot, T::Ident]));
const LITERAL: Set = Set::new(&[T::Minus, T::True, T::False, T::Null, T::Float, T::Int, T::Uint, T::String, T::Bytes]);
const OPTIONAL_EXPR: Set = EXPR.or(Set::new(&[T::Question]));
const FIELD_NAME: Set = Set::new(&[T::Ident, T::EscapedIdent]);
const OPTIONAL_FIELD: Set = FIELD_NAME.or(Set::new(&[T::Question]));
const RELATIONS: Set =
    Set::new(&[T::Equals, T::NotEquals, T::In, T::Less, T::LessEquals, T::GreaterEquals, T::Greater]);
const SUMS: Set = Set::new(&[T::Plus, T::Minus]);
const PRODUCTS: Set = Set::new(&[T::Star, T::Slash, T::Percent]);
const CALC_LOOP: Set = SUMS.or(PRODUCTS).or(Set::END);
const RELATION_LOOP: Set = RELATIONS.or(Set::END);
const MEMBER_LOOP: Set = Set::new(&[T::Dot, T::LeftBracket]).or(Set::END);

const fn only(kind: T) -> Set {
    Set::new(&[kind])
}

const fn or_end(kind: T) -> Set {
    only(kind).or(Set::END)
}

/// All errors of a text that cannot be parsed.
pub(super) fn diagnose(source: &str, tokens: &Tokens) -> Vec<Found> {
    let mut d = Diagnosis {
        source,
        tokens,
        next: 0,
        seen: 0,
        skipped: 0,
        callers: Vec::new(),
        recovering: false,
        failed_at: None,
        failed_states: BTreeSet::new(),
        recoveries: 0,
        depth: [0; 3],
        syntax: Vec::new(),
        values: Vec::new(),
        muted: 0,
    };
    // Values are looked at once the parser has come to its end.
    if d.start().is_ok() {
        d.syntax.append(&mut d.values);
    }
    d.syntax
}

/// Why a rule ends early.
enum Stop {
    /// An error of the rule: it recovers, and whoever called it goes on.
    Rule,
    /// Nothing goes on.
    Parser,
}

type Result<T = (), E = Stop> = std::result::Result<T, E>;

/// A rule with a limited depth.
#[derive(Clone, Copy)]
enum Nested {
    Expr,
    Relation,
    Calc,
}

struct Diagnosis<'s> {
    source: &'s str,
    tokens: &'s Tokens,
    next: usize,
    /// Tokens that were looked at: errors between them are reported.
    seen: usize,
    skipped: usize,
    /// For each rule under way, what may follow it in the rule that called it.
    callers: Vec<Set>,
    /// After an error, until a token fits: no further errors.
    recovering: bool,
    failed_at: Option<usize>,
    failed_states: BTreeSet<u32>,
    recoveries: usize,
    depth: [usize; 3],
    syntax: Vec<Found>,
    values: Vec<Found>,
    muted: usize,
}

impl Diagnosis<'_> {
    fn token(&self, n: usize) -> Token {
        let all = &self.tokens.all;
        all[(self.next + n).min(all.len() - 1)]
    }

    fn is(&self, kind: T) -> bool {
        self.token(0).kind == kind
    }

    /// Looks at a token. What was skipped before it is an error now.
    fn fetch(&mut self, n: usize) -> Result<T> {
        let token = self.token(n);
        self.seen = self.seen.max(self.next + n);
        while let Some(s) = self.tokens.skipped.get(self.skipped).filter(|s| s.before <= self.seen) {
            self.skipped += 1;
            let text = &self.source[s.start..s.end];
            self.report(s.at, format!("token recognition error at: '{text}'"))?;
        }
        Ok(token.kind)
    }

    fn report(&mut self, at: u32, message: String) -> Result {
        let full = self.syntax.len() >= REPORTED;
        let message = if full { format!("More than {REPORTED} syntax errors") } else { message };
        self.syntax.push((Some(at), format!("Syntax error: {message}")));
        if full { Err(Stop::Parser) } else { Ok(()) }
    }

    fn fatal(&mut self, message: String) -> Stop {
        self.syntax.push((None, message));
        Stop::Parser
    }

    /// An error unless one was just reported.
    fn error(&mut self, at: u32, message: impl FnOnce(&Self) -> String) -> Result {
        if self.recovering {
            return Ok(());
        }
        self.recovering = true;
        let message = message(self);
        self.report(at, message)
    }

    fn display(&self, token: Token) -> String {
        if token.kind == T::Eof { "'<EOF>'".into() } else { escape(token.text(self.source)) }
    }

    /// What may come where `set` may come: if the rule can end, what may follow it.
    fn expected(&self, set: Set) -> Set {
        let mut all = set;
        for caller in self.callers.iter().rev() {
            if !all.can_end() {
                return all;
            }
            all = all.without(Set::END).or(*caller);
        }
        if all.can_end() { all.without(Set::END).or(only(T::Eof)) } else { all }
    }

    /// What may follow any rule under way.
    fn recovery_set(&self) -> Set {
        self.callers.iter().fold(Set::EMPTY, |all, s| all.or(*s)).without(Set::END)
    }

    fn matched(&mut self) {
        self.recovering = false;
        self.failed_at = None;
        self.failed_states.clear();
    }

    fn consume(&mut self) -> Result {
        self.fetch(0)?;
        self.next += usize::from(!self.is(T::Eof));
        Ok(())
    }

    fn skip_until(&mut self, set: Set, limit: usize) -> Result {
        let mut count = 0;
        while !matches!(self.fetch(0)?, T::Eof) && !set.has(self.token(0).kind) {
            if count >= limit {
                return Err(self.fatal(format!("error recovery token lookahead limit exceeded: {SKIPPED}")));
            }
            count += 1;
            self.consume()?;
        }
        Ok(())
    }

    fn unwanted(&mut self, set: Set) -> Result {
        let token = self.token(0);
        self.error(token.at, |d| format!("extraneous input {} expecting {}", d.display(token), d.expected(set)))
    }

    /// Drops a token if the next one fits.
    fn drop_one(&mut self, set: Set) -> Result<bool> {
        let fits = self.expected(set).has(self.fetch(1)?);
        if fits {
            self.unwanted(set)?;
            self.consume()?;
            self.matched();
        }
        Ok(fits)
    }

    fn mismatch(&mut self, state: u32, set: Set) -> Result {
        let token = self.token(0);
        self.error(token.at, |d| format!("mismatched input {} expecting {}", d.display(token), d.expected(set)))?;
        self.recover(state)
    }

    /// No alternative begins with the tokens up to the one that is `n` tokens ahead.
    fn no_alternative(&mut self, state: u32, n: usize) -> Result {
        self.fetch(n)?;
        let (from, to) = (self.token(0), self.token(n));
        self.error(to.at, |d| {
            let text = if from.kind == T::Eof { "<EOF>".into() } else { d.text(from, to) };
            match text.strip_prefix('.') {
                Some(word @ ("true" | "false" | "null")) => format!("mismatched input '{word}' expecting IDENTIFIER"),
                _ => format!("no viable alternative at input {}", escape(&text)),
            }
        })?;
        self.recover(state)
    }

    /// The text of tokens and of what is between them, without what is no token.
    fn text(&self, from: Token, to: Token) -> String {
        let (mut start, mut out) = (from.start as usize, String::new());
        let between = from.start as usize..to.start as usize;
        for s in self.tokens.skipped.iter().filter(|s| between.contains(&s.start)) {
            out.push_str(&self.source[start..s.start]);
            start = s.end;
        }
        out + &self.source[start..to.end as usize]
    }

    /// Skips to what may follow a rule under way. The rule has failed.
    fn recover(&mut self, state: u32) -> Result {
        self.attempt()?;
        let mut limit = SKIPPED;
        if self.failed_at == Some(self.next) && self.failed_states.contains(&state) {
            limit -= 1;
            self.consume()?;
        }
        self.failed_at = Some(self.next);
        self.failed_states.insert(state);
        self.skip_until(self.recovery_set(), limit)?;
        Err(Stop::Rule)
    }

    fn attempt(&mut self) -> Result {
        if self.recoveries == RECOVERIES {
            let at = self.token(0).at;
            self.report(at, format!("error recovery attempt limit exceeded: {RECOVERIES}"))?;
            return Err(Stop::Parser);
        }
        self.recoveries += 1;
        Ok(())
    }

    /// Before a choice among what begins with `set`: drops a token if that helps.
    fn sync(&mut self, state: u32, set: Set) -> Result {
        let kind = self.fetch(0)?;
        if self.recovering || set.has(kind) || self.drop_one(set)? { Ok(()) } else { self.mismatch(state, set) }
    }

    /// Before another turn of a loop, which may end: skips what fits neither.
    fn sync_loop(&mut self, set: Set) -> Result {
        let kind = self.fetch(0)?;
        if self.recovering || set.has(kind) {
            return Ok(());
        }
        self.unwanted(set)?;
        self.skip_until(self.expected(set).or(self.recovery_set()), usize::MAX)
    }

    /// A token, and what may come behind it.
    fn expect(&mut self, state: u32, kind: T, after: Set) -> Result {
        if self.fetch(0)? == kind {
            self.matched();
            return self.consume();
        }
        self.attempt()?;
        if self.drop_one(only(kind))? {
            return self.consume();
        }
        let token = self.token(0);
        if self.expected(after).has(token.kind) {
            return self.error(token.at, |d| format!("missing {} at {}", only(kind), d.display(token)));
        }
        self.mismatch(state, only(kind))
    }

    /// A token that was seen to be there.
    fn matches(&mut self) -> Result {
        self.matched();
        self.consume()
    }

    /// Calls a rule, behind which `after` may come in this one.
    fn call(&mut self, after: Set, rule: impl FnOnce(&mut Self) -> Result) -> Result {
        self.callers.push(after);
        let result = rule(self);
        self.callers.pop();
        match result {
            Err(Stop::Rule) => Ok(()),
            result => result,
        }
    }

    fn nested(&mut self, rule: Nested, body: impl FnOnce(&mut Self) -> Result) -> Result {
        self.depth[rule as usize] += 1;
        if self.depth[rule as usize] > DEPTH_LIMIT {
            return Err(self.fatal(format!("expression recursion limit exceeded: {DEPTH_LIMIT}")));
        }
        let result = body(self);
        self.depth[rule as usize] -= 1;
        result
    }

    fn value(&mut self, at: u32, error: Option<String>) {
        if let Some(message) = error.filter(|_| self.muted == 0) {
            self.values.push((Some(at), message));
        }
    }

    // The rules.

    fn start(&mut self) -> Result {
        self.call(only(T::Eof), Self::expr)?;
        match self.expect(1, T::Eof, Set::END) {
            Err(Stop::Rule) => Ok(()),
            result => result,
        }
    }

    fn expr(&mut self) -> Result {
        self.nested(Nested::Expr, |d| {
            d.call(or_end(T::Question), Self::conditional_or)?;
            if d.fetch(0)? == T::Question {
                d.matches()?;
                d.call(only(T::Colon), Self::conditional_or)?;
                d.expect(2, T::Colon, EXPR)?;
                d.call(Set::END, Self::expr)?;
            }
            Ok(())
        })
    }

    fn conditional_or(&mut self) -> Result {
        self.call(or_end(T::Or), Self::conditional_and)?;
        while self.fetch(0)? == T::Or {
            self.matches()?;
            self.call(or_end(T::Or), Self::conditional_and)?;
        }
        Ok(())
    }

    fn conditional_and(&mut self) -> Result {
        self.call(or_end(T::And), Self::relation)?;
        while self.fetch(0)? == T::And {
            self.matches()?;
            self.call(or_end(T::And), Self::relation)?;
        }
        Ok(())
    }

    fn relation(&mut self) -> Result {
        self.nested(Nested::Relation, |d| {
            d.call(RELATION_LOOP, |d| d.calc(0))?;
            while RELATIONS.has(d.fetch(0)?) {
                d.matches()?;
                let operand = |d: &mut Self| d.call(RELATION_LOOP, |d| d.calc(0));
                d.call(RELATION_LOOP, |d| d.nested(Nested::Relation, operand))?;
            }
            Ok(())
        })
    }

    /// Operands and operators, those above a level only: 0 is all, 1 is products, 2 is none.
    fn calc(&mut self, level: u8) -> Result {
        self.nested(Nested::Calc, |d| {
            d.call(CALC_LOOP, Self::unary)?;
            loop {
                let inner = match d.fetch(0)? {
                    kind if PRODUCTS.has(kind) && level < 2 => 2,
                    kind if SUMS.has(kind) && level < 1 => 1,
                    _ => return Ok(()),
                };
                d.matches()?;
                d.call(CALC_LOOP, |d| d.calc(inner))?;
            }
        })
    }

    fn unary(&mut self) -> Result {
        self.sync(3, EXPR)?;
        match (self.fetch(0)?, self.fetch(1)?) {
            (T::Not, _) => {
                while self.is(T::Not) {
                    self.matches()?;
                    self.sync_loop(EXPR)?;
                }
                self.call(Set::END, Self::member)
            }
            (T::Minus, T::Int | T::Float) => self.call(Set::END, Self::member),
            (T::Minus, kind) if !MEMBER.has(kind) => self.no_alternative(3, 1),
            (T::Minus, _) => {
                self.matches()?;
                loop {
                    self.sync_loop(MEMBER)?;
                    match (self.fetch(0)?, self.fetch(1)?) {
                        (T::Minus, kind) if !MEMBER.has(kind) => return self.no_alternative(4, 1),
                        (T::Minus, _) => self.matches()?,
                        (kind, _) if MEMBER.has(kind) => break,
                        _ => return self.no_alternative(4, 0),
                    }
                }
                self.call(Set::END, Self::member)
            }
            (kind, _) if MEMBER.has(kind) => self.call(Set::END, Self::member),
            _ => self.no_alternative(3, 0),
        }
    }

    fn member(&mut self) -> Result {
        self.call(MEMBER_LOOP, Self::primary)?;
        loop {
            match self.fetch(0)? {
                T::LeftBracket => {
                    self.matches()?;
                    self.sync(5, OPTIONAL_EXPR)?;
                    if self.is(T::Question) {
                        self.matches()?;
                    }
                    self.call(only(T::RightBracket), Self::expr)?;
                    self.expect(6, T::RightBracket, MEMBER_LOOP)?;
                }
                T::Dot => match (self.fetch(1)?, self.token(2).kind) {
                    (T::Ident, T::LeftParen) => {
                        self.matches()?;
                        self.matches()?;
                        self.call_args(7, MEMBER_LOOP)?;
                    }
                    (T::Question | T::Ident | T::EscapedIdent, _) => {
                        self.matches()?;
                        if self.is(T::Question) {
                            self.matches()?;
                        }
                        self.call(MEMBER_LOOP, Self::field_name)?;
                    }
                    _ => return self.no_alternative(8, 1),
                },
                _ => return Ok(()),
            }
        }
    }

    /// A parenthesis that was seen to be there, and its arguments.
    fn call_args(&mut self, state: u32, after: Set) -> Result {
        self.matches()?;
        self.sync(state + 100, EXPR.or(only(T::RightParen)))?;
        if EXPR.has(self.fetch(0)?) {
            self.call(only(T::RightParen), |d| d.list(|d| d.call(or_end(T::Comma), Self::expr), None))?;
        }
        self.expect(state + 200, T::RightParen, after)
    }

    /// Items with commas between them. The last comma belongs to it only if an item follows that begins with one of `first`.
    fn list(&mut self, item: impl Fn(&mut Self) -> Result, first: Option<Set>) -> Result {
        item(self)?;
        while self.fetch(0)? == T::Comma {
            if let Some(first) = first
                && !first.has(self.fetch(1)?)
            {
                break;
            }
            self.matches()?;
            item(self)?;
        }
        Ok(())
    }

    fn field_name(&mut self) -> Result {
        self.sync(9, FIELD_NAME)?;
        let token = self.token(0);
        match token.kind {
            T::Ident => self.matches(),
            T::EscapedIdent => {
                self.value(token.at, Some(names::NO_ESCAPED_IDENTS.into()));
                self.matches()
            }
            _ => self.no_alternative(9, 0),
        }
    }

    fn primary(&mut self) -> Result {
        self.sync(10, MEMBER)?;
        let token = self.token(0);
        match self.fetch(0)? {
            T::Dot if self.fetch(1)? != T::Ident => self.no_alternative(10, 1),
            T::Dot | T::Ident => self.name(),
            T::LeftParen => {
                self.matches()?;
                self.call(only(T::RightParen), Self::expr)?;
                self.expect(11, T::RightParen, Set::END)
            }
            T::LeftBracket => {
                self.elements(12, T::RightBracket, OPTIONAL_EXPR, |d| d.call(or_end(T::Comma), Self::optional_expr))
            }
            T::LeftBrace => self.elements(13, T::RightBrace, OPTIONAL_EXPR, |d| {
                d.call(only(T::Colon), Self::optional_expr)?;
                d.expect(14, T::Colon, EXPR)?;
                d.call(or_end(T::Comma), Self::expr)
            }),
            kind if LITERAL.has(kind) => self.call(Set::END, |d| d.literal(token)),
            _ => self.no_alternative(10, 0),
        }
    }

    /// A bracket that was seen to be there, and items with commas between them and maybe behind them.
    fn elements(&mut self, state: u32, end: T, first: Set, item: impl Fn(&mut Self) -> Result) -> Result {
        self.matches()?;
        let rest = Set::new(&[T::Comma]).or(only(end));
        self.sync(state + 100, first.or(rest))?;
        if first.has(self.fetch(0)?) {
            self.call(rest, |d| d.list(item, Some(first)))?;
        }
        self.sync(state + 200, rest)?;
        if self.is(T::Comma) {
            self.matches()?;
        }
        self.expect(state + 300, end, Set::END)
    }

    fn name(&mut self) -> Result {
        let start = self.token(0).at;
        if self.is(T::Dot) {
            self.matches()?;
        }
        let ident = self.token(0);
        let first = self.next;
        self.matches()?;
        let is_call = self.fetch(0)? == T::LeftParen;
        if !is_call && names::is_message(&self.tokens.all, first) {
            while !self.is(T::LeftBrace) {
                self.matches()?;
            }
            return self.elements(15, T::RightBrace, OPTIONAL_FIELD, |d| {
                d.call(only(T::Colon), Self::optional_field)?;
                d.expect(16, T::Colon, EXPR)?;
                d.call(or_end(T::Comma), Self::expr)
            });
        }
        let error = names::reserved_error(ident.text(self.source));
        let is_reserved = error.is_some();
        self.value(start, error);
        if !is_call {
            return Ok(());
        }
        self.muted += usize::from(is_reserved);
        let result = self.call_args(17, Set::END);
        self.muted -= usize::from(is_reserved);
        result
    }

    fn optional_expr(&mut self) -> Result {
        self.sync(18, OPTIONAL_EXPR)?;
        if self.is(T::Question) {
            self.matches()?;
        }
        self.call(Set::END, Self::expr)
    }

    fn optional_field(&mut self) -> Result {
        self.sync(19, OPTIONAL_FIELD)?;
        if self.is(T::Question) {
            self.matches()?;
        }
        self.call(Set::END, Self::field_name)
    }

    fn literal(&mut self, first: Token) -> Result {
        let is_negative = first.kind == T::Minus;
        if is_negative {
            if !matches!(self.fetch(1)?, T::Int | T::Float) {
                return self.no_alternative(20, 1);
            }
            self.matches()?;
        }
        let token = self.token(0);
        let error = literal::value(token.kind, token.text(self.source), is_negative).err();
        self.value(first.at, error.map(str::to_owned));
        self.matches()
    }
}

/// Text as messages quote it.
fn escape(text: &str) -> String {
    format!("'{}'", text.replace('\t', "\\t").replace('\n', "\\n").replace('\r', "\\r"))
}
