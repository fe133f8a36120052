#!/usr/bin/env bash
# docs/publish.sh SITE VERSION: put a built site on the branch gh-pages, in a folder of its version.
# The address of the branch leads to the newest release, and to main where there is none.
set -eu
site=$(realpath "$1") version=$2 pages=$(mktemp -d)
trap 'git worktree remove --force "$pages"' EXIT
if git fetch --depth 1 origin gh-pages; then
  git worktree add --detach "$pages" FETCH_HEAD
else
  git worktree add --detach "$pages"
  git -C "$pages" checkout --orphan gh-pages
  git -C "$pages" rm -rf --quiet .
fi
cd "$pages"
rm -rf "$version"
cp -r "$site" "$version"
touch .nojekyll # GitHub would leave out folders that begin with _
newest=$(printf '%s\n' v*/ | grep -v '\*' | sort -V | tail -1)
echo "<!doctype html><meta http-equiv='refresh' content='0; url=${newest:-main/}'>" >index.html
{
  echo "<!doctype html><title>tpviz: versions</title><h1>Versions of the documentation</h1><ul>"
  for folder in */; do echo "<li><a href='$folder'>${folder%/}</a></li>"; done
  echo "</ul>"
} >versions.html
git add --all
git -c user.name=docs -c user.email=docs@localhost commit --quiet --allow-empty --message "Documentation of $version"
git push origin HEAD:gh-pages
