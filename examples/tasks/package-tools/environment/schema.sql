CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT NOT NULL, country TEXT NOT NULL);
CREATE TABLE products (sku TEXT PRIMARY KEY, name TEXT NOT NULL, price_cents INTEGER NOT NULL);
INSERT INTO customers VALUES
  (1, 'Ada Moreau', 'FR'), (2, 'Jonas Brandt', 'DE'), (3, 'Chiara Neri', 'IT'), (4, 'Deng Wei', 'CN'),
  (5, 'Lena Fuchs', 'DE'), (6, 'Gwen ap Rhys', 'GB'), (7, 'Joana Sá', 'PT'), (8, 'Kofi Mensah', 'GH');
INSERT INTO products VALUES
  ('BELL-S', 'Small cloche', 1250), ('BELL-L', 'Large cloche', 3900), ('TRAY', 'Seed tray', 475),
  ('TWINE', 'Garden twine', 320), ('CAN', 'Watering can', 2100), ('GIFT', 'Gift card', 0);
