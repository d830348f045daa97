#!/bin/sh
# Makes the notes in the folder given. Some belong to scribe with odd modes, some to root.
set -eu
mkdir -p "$1"
cd "$1"
mkdir -p diary/2024 diary/2025 plans/far vault .hidden

echo 'Buy seeds, twine and a new watering can.' > shopping.txt
echo 'The robin came back.' > diary/2024/first.txt
echo 'Rain all day; mended the cold frame.' > diary/2024/second.txt
printf 'Frost.\nFrost again.\nThaw at last.\n' > diary/2025/january.txt
printf 'One two three\tfour   five\n\nsix\n' > 'plans/a list.txt'
printf 'Ask Mira about the well before May.' > plans/far/well.txt
: > plans/empty.txt
echo 'Nobody should have to look for this one.' > .hidden/key.txt
echo 'Written while asleep.' > diary/2024/dream.txt
echo 'Kept by the house.' > plans/deed.txt
echo 'Readable by everyone, owned by the house.' > plans/notice.txt
echo 'Behind a door.' > vault/inventory.txt
echo 'For the readers.' > diary/lent.txt

chown -R scribe:scribe .
chmod 0777 . shopping.txt
chmod 0700 diary diary/2024 diary/2025 plans plans/far .hidden
chmod 0604 diary/2024/first.txt
chmod 0000 diary/2024/dream.txt
chmod 0400 .hidden/key.txt
chown root:root plans/deed.txt plans/notice.txt vault vault/inventory.txt
chown root:readers diary/lent.txt
chmod 0600 plans/deed.txt
chmod 0644 plans/notice.txt vault/inventory.txt
chmod 0700 vault
chmod 0040 diary/lent.txt
chmod 0100 diary/2025
